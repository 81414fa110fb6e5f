package workernode

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/control/state"
)

// What supervisors and load balancers ask for tells the truth from before the first
// replica serves until after the last has ended.
func TestProbes(t *testing.T) {
	w := newTown(t)
	ask := func(x *worker, method, path string) (int, string) {
		t.Helper()
		r := httptest.NewRecorder()
		x.probes().ServeHTTP(r, httptest.NewRequest(method, path, nil))
		return r.Code, strings.TrimSpace(r.Body.String())
	}
	want := func(x *worker, path string, code int, body string) {
		t.Helper()
		if c, b := ask(x, http.MethodGet, path); c != code || !strings.Contains(b, body) {
			t.Errorf("%s: %d %s, want %d with %q", path, c, b, code, body)
		}
	}
	none := w.worker("w0")
	want(none, "/readyz", 503, "no replica is placed here")
	bad := w.worker("w1", "nonsense")
	x := w.worker("w2", "tiny-s")
	want(x, "/healthz", 200, `{"status":"ok"}`)
	w.awaitReady(1)
	<-x.Ready()
	w.await("what cannot be run", func(s *state.State) bool { return len(s.ReplicasOf("nonsense")) == 1 })
	want(x, "/readyz", 200, `{"status":"ready"}`)
	want(x, "/health", 200, "ok")
	want(x, "/metrics", 200, "go_goroutines")
	want(bad, "/healthz", 200, "ok")
	want(bad, "/readyz", 503, "nonsense")
	if code, _ := ask(x, http.MethodHead, "/healthz"); code != 200 {
		t.Errorf("HEAD: %d", code)
	}
	if code, _ := ask(x, http.MethodPost, "/healthz"); code != 405 {
		t.Errorf("POST: %d", code)
	}
	x.drained()
	want(x, "/readyz", 503, "drains")
	want(x, "/healthz", 200, "ok")
}
