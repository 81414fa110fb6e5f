package peer_test

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// collaborator gives every turn back with one more token.
type collaborator struct{}

func (collaborator) LinkUp(*peer.Link)          {}
func (collaborator) LinkDown(*peer.Link, error) {}
func (collaborator) HandleFrame(l *peer.Link, f *handoff.Frame) {
	back := handoff.Frame{
		Kind: handoff.KindHandoff, Request: f.Request, Epoch: f.Epoch, Hop: f.Hop + 1,
		From: f.To, To: f.From,
		Base:   f.Base + int32(len(f.Tokens)),
		Tokens: []handoff.Token{{ID: 42, Model: f.To}},
	}
	if err := l.Send(&back); err != nil {
		fmt.Println("send:", err)
	}
}

// entry hands request 1 off as soon as the link is up.
type entry struct{ done context.CancelFunc }

func (e entry) LinkUp(l *peer.Link) {
	replica, model := l.Peer()
	fmt.Printf("link to %s (%s)\n", replica, model)
	err := l.Send(&handoff.Frame{
		Kind: handoff.KindHandoff, Request: 1, Epoch: 1, Hop: 1, To: 1,
		Tokens: []handoff.Token{{ID: 7}, {ID: 8}},
		First:  &handoff.First{Deployment: "pair", PromptLen: 2},
	})
	if err != nil {
		fmt.Println("send:", err)
	}
}

func (e entry) HandleFrame(_ *peer.Link, f *handoff.Frame) {
	fmt.Printf("hop %d: token %d at position %d\n", f.Hop, f.Tokens[0].ID, f.Base)
	e.done()
}

func (entry) LinkDown(_ *peer.Link, err error) { fmt.Println("link down:", err) }

// Two sub-services of one process, over HTTP/2 on an in-memory connection.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server, err := peer.NewServer(peer.ServerConfig{
		Config: peer.Config{Replica: "large-0", Model: "tiny-l", Handler: collaborator{}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener := memconn.Listen()
	mux := http.NewServeMux()
	mux.Handle(peer.Path, server)
	front, err := h2.NewServer(h2.Config{}, mux)
	if err != nil {
		fmt.Println(err)
		return
	}
	transport, err := h2.NewTransport(h2.Config{
		Dial: func(ctx context.Context) (net.Conn, error) { return listener.Dial(ctx) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer transport.Close()
	client, err := peer.NewClient(peer.ClientConfig{
		Config:    peer.Config{Replica: "small-0", Model: "tiny-s", Handler: entry{done: cancel}},
		URL:       "http://large-0",
		Transport: transport,
		Expect:    "large-0",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	group := pool.New().WithContext(ctx)
	group.Go(server.Run)
	group.Go(func(ctx context.Context) error { return front.Serve(ctx, listener) })
	group.Go(client.Run)
	_ = group.Wait() // all end with ctx

	// Output:
	// link to large-0 (tiny-l)
	// hop 2: token 42 at position 2
	// link down: peer: closed
}
