package plainhttp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The end of ctx ends a request that waits, and is what Serve returns.
func TestServe(t *testing.T) {
	l, why := listen(t), errors.New("the end")
	ctx, stop := context.WithCancelCause(t.Context())
	asked := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /quick", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("GET /slow", func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})
	var err error
	server := pool.New()
	server.Go(func() { err = Serve(ctx, l, mux) })
	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	response, failed := client.Get("http://" + l.Addr().String() + "/quick")
	if failed != nil {
		t.Fatal(failed)
	}
	text, failed := io.ReadAll(response.Body)
	if failed = errors.Join(failed, response.Body.Close()); failed != nil || string(text) != "ok" {
		t.Errorf("%q, %v", text, failed)
	}
	server.Go(func() {
		<-asked
		stop(why)
	})
	if response, failed := client.Get("http://" + l.Addr().String() + "/slow"); failed == nil {
		_ = response.Body.Close()
	}
	server.Wait()
	if !errors.Is(err, why) {
		t.Errorf("the end: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is open: %v", err)
	}
}

func TestListenerFails(t *testing.T) {
	l := listen(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), l, http.NotFoundHandler()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed listener: %v", err)
	}
}
