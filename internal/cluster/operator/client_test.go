package operator

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/plainhttp"
)

// node answers as a control node that has come to each of the indexes in turn, without waiting
// between them. acknowledged is what it says of the leader; 0 for nothing.
func node(t *testing.T, acknowledged uint64, leader string, indexes ...uint64) *Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+cluster.PathIndex, func(w http.ResponseWriter, _ *http.Request) {
		if acknowledged == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(cluster.Problem{Code: cluster.CodeNoQuorum, Text: "no leader"})
			return
		}
		_ = json.NewEncoder(w).Encode(cluster.IndexReply{Index: acknowledged})
	})
	mux.HandleFunc("GET "+cluster.PathWatch, func(w http.ResponseWriter, _ *http.Request) {
		for i, index := range indexes {
			_ = json.NewEncoder(w).Encode(client.Line{Index: index, History: "h", Snapshot: i == 0, Leader: leader})
		}
	})
	return serve(t, mux)
}

// serve gives a Client of a server that ends with the test.
func serve(t *testing.T, handler http.Handler) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var serving conc.WaitGroup
	serving.Go(func() { _ = plainhttp.Serve(t.Context(), l, handler) })
	c := OnSocket(path)
	t.Cleanup(func() {
		_ = c.Close()
		serving.Wait()
	})
	return c
}

// What was acknowledged before is seen, also at a control node that has not heard of it yet; what
// cannot be known is not waited for.
func TestStateIsCurrent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		acknowledged uint64
		leader       string
		indexes      []uint64
		want         uint64
	}{
		{"it is up to date", 7, "c1", []uint64{7, 9}, 7},
		{"it has more", 7, "c1", []uint64{8, 9}, 8},
		{"it lags behind", 7, "c2", []uint64{3, 5, 7, 9}, 7},
		{"it lags behind, and does not know the leader yet", 7, "", []uint64{3, 8}, 8},
		{"there is no leader", 0, "", []uint64{3, 5}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, led, err := node(t, c.acknowledged, c.leader, c.indexes...).State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.Index != c.want || led != (c.leader != "") {
				t.Errorf("index %d, led %t; want %d", s.Index, led, c.want)
			}
		})
	}
}

// A refusal that was cut off says that the control node is gone, and nothing else: it may have
// wanted to say anything.
func TestCutRefusal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int
		text   string
		whole  bool
		want   error
	}{
		{"half a refusal", http.StatusForbidden, `{"code":"forb`, false, ErrUnreachable},
		{"half of who knows what", http.StatusNotFound, "404 pa", false, ErrUnreachable},
		{"a refusal", http.StatusForbidden, `{"code":"forbidden"}`, true, client.ErrForbidden},
		{"no control node", http.StatusNotFound, "404 page not found", true, ErrNoCluster},
		{"no reason", http.StatusBadGateway, "", true, ErrUnreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			node := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.text)
				if !c.whole {
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
			}))
			if _, err := node.Status(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}
