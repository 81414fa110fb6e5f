package control

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

// A leader that ends while it says that it leads no more has not answered: the command goes to
// whoever leads next.
func TestCutAnswerOfLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := identity.NewAuthority("c", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		ca, _, err := a.PEM()
		if err != nil {
			t.Fatal(err)
		}
		credentials := func(node string) *identity.Credentials {
			key, request, err := identity.NewKey()
			if err != nil {
				t.Fatal(err)
			}
			text, err := identity.EncodeKey(key)
			if err != nil {
				t.Fatal(err)
			}
			certificate, err := a.Issue(request, identity.Name{Cluster: "c", Role: cluster.Control, Node: node}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			out, err := identity.NewCredentials(certificate, text, [][]byte{ca}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		asked := 0
		server, err := h2.NewServer(h2.Config{TLS: credentials("c1").Server(identity.ProtocolHTTP)}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked++; asked > 1 {
				_, _ = io.WriteString(w, `{"index":7}`)
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"code":"not_lea`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}))
		if err != nil {
			t.Fatal(err)
		}
		l := memconn.Listen()
		ctx, stop := context.WithCancel(t.Context())
		var serving conc.WaitGroup
		defer serving.Wait()
		defer stop()
		serving.Go(func() { _ = server.Serve(ctx, l) })

		view := client.NewView()
		n := &Node{
			cfg: Config{Self: cluster.Node{ID: "c2"}, Patience: time.Second}, log: slog.New(slog.DiscardHandler),
			leader: newLeadership(), view: view, book: newBook(view), gone: make(chan struct{}),
			peers: client.NewPeers(credentials("c2"), func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) }, nil),
		}
		defer func() { _ = n.peers.Close() }()
		n.leader.set("c1", target("c1", "c1:1"), false)
		command, err := cluster.NewCommand(cluster.KindDeleteDeployment, "once", time.Now(), cluster.Name{Name: "d"})
		if err != nil {
			t.Fatal(err)
		}
		if index, err := n.Propose(ctx, command); err != nil || index != 7 || asked != 2 {
			t.Errorf("index %d after %d questions, %v", index, asked, err)
		}
	})
}
