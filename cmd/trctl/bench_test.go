package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/bench"
)

func TestCommandLine(t *testing.T) {
	got := commandLine([]string{"bench", "--url", "http://h:1/v1", "--file", "two words", "it's", "", "$x"})
	if want := `trctl bench --url http://h:1/v1 --file 'two words' 'it'\''s' '' '$x'`; got != want {
		t.Errorf("commandLine = %s, want %s", got, want)
	}
}

func TestProgressOfBench(t *testing.T) {
	requests, timed := &bench.Config{Requests: 40}, &bench.Config{Duration: 10 * time.Second}
	q := bench.Progress{Measuring: true, Done: 10, Failed: 2, Tokens: 500, Elapsed: 2 * time.Second}
	for _, test := range []struct {
		cfg  *bench.Config
		q    bench.Progress
		line string
		done float64
	}{
		{requests, bench.Progress{}, "warm-up", 0},
		{requests, q, "10/40 requests, 2 failed, 250 tokens/s", .25},
		{timed, q, "10 requests, 2 failed, 250 tokens/s", .2},
		{timed, bench.Progress{Measuring: true, Elapsed: time.Minute}, "0 requests, 0 tokens/s", 1},
	} {
		if line, share := progressLine(test.q, test.cfg), done(test.q, test.cfg); line != test.line || share != test.done {
			t.Errorf("%+v: %q, %v; want %q, %v", test.q, line, share, test.line, test.done)
		}
	}
}

// An interrupted run prints what was measured and ends with 130.
func TestBenchInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the client has gone
		if n++; n > 3 {
			stop()
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, `{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}`)
	}))
	defer server.Close()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"bench", "--url", server.URL, "--model", "m", "--no-stream", "--warmup", "0", "-o", "json"},
		process{in: &bytes.Buffer{}, out: &out, err: &errs})
	var report bench.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v\n%s\n%s", err, &out, &errs)
	}
	if code != exitInterrupted || !report.Interrupted || report.Succeeded != 3 || report.Failed != 0 {
		t.Errorf("exit code %d, report %+v", code, report)
	}
}

func TestBenchSendsTheKey(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer sk-1":
			w.WriteHeader(http.StatusUnauthorized)
		case r.Method == http.MethodGet:
			fmt.Fprint(w, `{"data":[{"id":"first"}]}`)
		default:
			fmt.Fprint(w, `{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}`)
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("sk-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"bench", "--url", server.URL + "/v1/", "--api-key-file", file, "--no-stream", "-n", "2", "-o", "json"},
		process{in: &bytes.Buffer{}, out: &out, err: &errs})
	if code != exitDone || !bytes.Contains(out.Bytes(), []byte(`"model": "first"`)) || bytes.Contains(out.Bytes(), []byte("sk-1")) {
		t.Errorf("exit code %d\n%s\n%s", code, &out, &errs)
	}
}
