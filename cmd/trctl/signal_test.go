//go:build unix

package main

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sourcegraph/conc"
)

// served starts `trctl serve` and returns its address once it serves.
func served(t *testing.T, args ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command("trctl", append([]string{"serve", "--listen=127.0.0.1:0"}, args...)...)
	cmd.Stderr = os.Stderr
	// A child of a process that ignores interrupts, as one in the background of a
	// script does, would ignore them as well; of one that handles them it does not.
	handled := make(chan os.Signal, 1)
	signal.Notify(handled, os.Interrupt)
	defer signal.Stop(handled)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // too late if it has ended, as it should
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, url, found := strings.Cut(lines.Text(), " serves on "); found {
			return cmd, url
		}
	}
	t.Fatal("it does not serve")
	return nil, ""
}

// A second Ctrl-C ends the process at once, while a request that would take long
// is still in flight.
func TestSecondInterrupt(t *testing.T) {
	cmd, url := served(t, "--drain-timeout=10m", "--log-level=error")
	body := `{"model":"tiny-l","stream":true,"n":8,"max_tokens":3000,"ignore_eos":true,"messages":[{"role":"user","content":"What is 2 + 3?"}]}`
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("status %d: %s", resp.StatusCode, text)
	}
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	ended := make(chan error, 1)
	var group conc.WaitGroup
	defer group.Wait()
	group.Go(func() { ended <- cmd.Wait() })
	interrupt := func() { _ = cmd.Process.Signal(os.Interrupt) }
	interrupt()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for draining := false; !draining; {
		select {
		case err := <-ended:
			t.Fatalf("the first interrupt ended it: %v", err)
		case <-tick.C:
		}
		ready, err := http.Get(url + "/readyz")
		if draining = err != nil || ready.StatusCode != http.StatusOK; err == nil {
			ready.Body.Close()
		}
	}
	// The drain may have begun a moment before the next signal has its effect.
	for {
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("got %v", err)
			}
			if status, ok := exit.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGINT {
				t.Errorf("ended by %v, want the signal (130 for a shell)", exit)
			}
			return
		case <-tick.C:
			interrupt()
		}
	}
}
