//go:build unix

package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// signalled is a standard input that nobody writes to. Reading it has a signal sent to
// the process.
type signalled struct {
	signal syscall.Signal
	closed <-chan struct{}
}

func (s signalled) Read([]byte) (int, error) {
	if err := syscall.Kill(syscall.Getpid(), s.signal); err != nil {
		return 0, err
	}
	select {
	case <-s.closed:
	case <-time.After(20 * time.Second): // nobody has heard the signal
	}
	return 0, io.EOF
}

// What runs until it is stopped may be stopped at any time, also before it runs.
func TestStopBeforeTheStart(t *testing.T) {
	// Keeps the test's process alive where nobody else handles the signals.
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(caught)
	closed := make(chan struct{})
	defer close(closed)
	for line, sig := range map[string]syscall.Signal{"worker join": syscall.SIGTERM, "gateway join": syscall.SIGINT, "cluster join": syscall.SIGTERM} {
		dir := filepath.Join(t.TempDir(), "node")
		args := append(strings.Fields(line), "--token-file=-", "--data="+dir)
		var out, errs strings.Builder
		code := run(t.Context(), args, process{in: signalled{sig, closed}, out: &out, err: &errs})
		if code != exitDone || out.Len()+errs.Len() > 0 {
			t.Errorf("%s, %s: exit code %d\n%s%s", line, sig, code, &out, &errs)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s has made its directory", line)
		}
	}
}

func TestStays(t *testing.T) {
	for line, want := range map[string]bool{
		"": false, "serve": true, "serve --help": true, "cluster": false, "cluster init --quiet": true, "cluster join addr": true, "gateway join": true,
		"worker join --model m": true, "worker": false, "cluster status": false, "get nodes -w": false, "join": false,
	} {
		if got := stays(strings.Fields(line)); got != want {
			t.Errorf("stays(%q) = %t", line, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for line, want := range map[string]int{"serve": exitDone, "cluster init --nonsense": exitUsage, "get nodes": exitInterrupted} {
		if code := run(ctx, strings.Fields(line), process{out: io.Discard, err: io.Discard}); code != want {
			t.Errorf("%s, stopped at once: exit code %d", line, code)
		}
	}
}
