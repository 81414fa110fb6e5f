package control_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
)

// A node that tries again and again to join with a token that does not hold is told of
// once for each cause.
func TestRefusedJoinsAreCounted(t *testing.T) {
	t.Parallel()
	log := new(buffer)
	c := controltest.New(t, 1, func(cfg *control.Config) {
		cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	const tries = 12 // the last ones are too many
	for range tries {
		rawJoin(t, c.Leader().Addr, []byte(`{"token":"none","role":"worker","node":"w","protocol":1}`+"\n"))
	}
	c.Poll("the last refusal", func() bool { return strings.Count(log.String(), `msg="join refused"`) == tries })
	if n := strings.Count(log.String(), `level=WARN msg="join refused"`); n != 2 || !strings.Contains(log.String(), "count=10") {
		t.Errorf("%d warnings:\n%s", n, log)
	}
}
