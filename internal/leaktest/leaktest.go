package leaktest

import (
	"testing"

	"go.uber.org/goleak"
)

// Late lets goleak pass over a connection whose request net/http has refused: it waits half a second for its client before
// it closes, also after its server was closed, which is longer than goleak has patience. It ends by itself.
func Late() goleak.Option { return goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait") }

// Main runs a package's tests and exits: it is what its TestMain calls.
func Main(m *testing.M) { goleak.VerifyTestMain(m, Late()) }
