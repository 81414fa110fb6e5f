package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

// cutOff answers with the beginning of a text, and then the stream ends.
func cutOff(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// answering answers with the whole of a text.
func answering(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// serving gives what dials the servers of some addresses, and ends them with the test.
func serving(t *testing.T, a *identity.Authority, handlers map[string]http.HandlerFunc) Dial {
	ctx, stop := context.WithCancel(t.Context())
	var servers conc.WaitGroup
	t.Cleanup(func() {
		stop()
		servers.Wait()
	})
	listeners := map[string]*memconn.Listener{}
	for addr, handler := range handlers {
		l := memconn.Listen()
		listeners[addr] = l
		server, err := h2.NewServer(h2.Config{TLS: issued(t, a, cluster.Control, "c1").Server(identity.ProtocolHTTP)}, handler)
		if err != nil {
			t.Fatal(err)
		}
		servers.Go(func() { _ = server.Serve(ctx, l) })
	}
	return func(ctx context.Context, _, addr string) (net.Conn, error) { return listeners[addr].Dial(ctx) }
}

// An answer of which only a part has come is none, whatever its status: who called asks again.
// One that came whole is the control node's word.
func TestCutAnswer(t *testing.T) {
	problem, err := json.Marshal(Problem(ErrNotLeader))
	if err != nil {
		t.Fatal(err)
	}
	whole := string(problem)
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		want  error // nil for no answer
	}{
		"refusal without a body":  {cutOff(http.StatusServiceUnavailable, ""), nil},
		"half a refusal":          {cutOff(http.StatusServiceUnavailable, whole[:len(whole)/2]), nil},
		"a refusal without end":   {cutOff(http.StatusServiceUnavailable, whole), nil},
		"not found, cut off":      {cutOff(http.StatusNotFound, "404 page"), nil},
		"half a success":          {cutOff(http.StatusOK, `{"index":`), nil},
		"a refusal":               {answering(http.StatusServiceUnavailable, whole), ErrNotLeader},
		"another status":          {answering(http.StatusConflict, whole), ErrNotLeader},
		"a refusal for no reason": {answering(http.StatusServiceUnavailable, ""), ErrInternal},
		"a refusal of nobody's":   {answering(http.StatusInternalServerError, "{}"), ErrInternal},
		"a page":                  {answering(http.StatusNotFound, "404 page not found"), ErrInternal},
		"a success for nothing":   {answering(http.StatusOK, ""), ErrBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, err := identity.NewAuthority("c", time.Now())
				if err != nil {
					t.Fatal(err)
				}
				p := NewPeers(issued(t, a, cluster.Worker, "w"), serving(t, a, map[string]http.HandlerFunc{"c1:1": c.serve}), nil)
				defer func() { _ = p.Close() }()
				var reply cluster.ProposeReply
				err = p.Call(t.Context(), "c1", "c1:1", cluster.PathPropose, struct{}{}, &reply, cluster.MaxCall)
				switch {
				case err == nil:
					t.Errorf("it succeeded: %+v", reply)
				case c.want != nil && !errors.Is(err, c.want):
					t.Errorf("error %v, want %v", err, c.want)
				case c.want == nil && (Problem(err).Code != cluster.CodeInternal || errors.Is(err, ErrInternal)):
					t.Errorf("error %v is taken for an answer", err)
				}
			})
		})
	}
}

// A client whose answer is cut off asks the next control node.
func TestCutAnswerElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := identity.NewAuthority("c", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		conflict, err := json.Marshal(Problem(state.ErrConflict))
		if err != nil {
			t.Fatal(err)
		}
		dial := serving(t, a, map[string]http.HandlerFunc{
			"a:1": cutOff(http.StatusConflict, string(conflict[:1])),
			"b:1": cutOff(http.StatusOK, `{"index":7`),
			"c:1": answering(http.StatusOK, `{"index":7}`),
		})
		c, err := New(Config{Credentials: issued(t, a, cluster.Worker, "w"), Control: []string{"a:1", "b:1", "c:1"}, Dial: dial})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		index, err := c.Propose(t.Context(), cluster.Command{})
		if err != nil || index != 7 {
			t.Errorf("index %d, %v", index, err)
		}
	})
}
