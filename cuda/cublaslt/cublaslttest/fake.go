package cublaslttest

import (
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
)

// Options shapes the simulated library.
type Options struct {
	// Version is what it reports, 130100 by default.
	Version int
	// WorkspaceBytes is what its algorithm needs.
	WorkspaceBytes int
}

// Fake controls the simulated library.
type Fake struct{}

// New resets the simulated library for the test, and checks at its end that every object of it was destroyed.
func New(tb testing.TB, o Options) Fake {
	tb.Helper()
	if o.Version == 0 {
		o.Version = 130100
	}
	reset(tb, o)
	tb.Cleanup(func() {
		if n := open(); n != 0 && !tb.Failed() {
			tb.Errorf("%d cuBLASLt objects left open", n)
		}
	})
	return Fake{}
}

// Load makes a Library over the simulated functions.
func (Fake) Load() (*cublaslt.Library, error) { return cublaslt.NewFromTable(pointer()) }

// Fail makes every later call of one function return a status; an empty name ends it.
func (Fake) Fail(function string, status int) { fail(function, status) }

// Open counts the objects that are open now.
func (Fake) Open() int { return open() }
