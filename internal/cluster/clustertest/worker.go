package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Identity is a node's, as if it had joined, and saved in a directory of its own.
func Identity(c *controltest.Cluster, role cluster.Role, node string) (dir string, saved *identity.Saved) {
	c.TB.Helper()
	certificate, key := c.Certificate(role, node)
	saved = &identity.Saved{
		Cluster: controltest.ID, Role: role, Node: node, Control: c.Addrs(),
		Certificate: certificate, Key: key, CAs: [][]byte{c.CA}, GossipKey: c.GossipKey,
	}
	if role == cluster.Gateway {
		saved.Pepper = c.Pepper
	}
	dir = c.TB.TempDir()
	if err := saved.Save(dir); err != nil {
		c.TB.Fatal(err)
	}
	return dir, saved
}

// Facts are what scripted replicas report.
func Facts() cluster.Facts {
	return cluster.Facts{Fingerprint: "f", Template: "t", Vocab: 1000, MaxContext: 512, KVTokens: 4096, Backend: "cpu"}
}

// Worker is a worker node whose replicas answer with a script.
type Worker struct {
	Node string
	Addr string

	script func(replica string) *sessiontest.Entry
	link   *link.Link
	stop   context.CancelFunc
	ended  func()

	mu      sync.Mutex
	entries map[string]*sessiontest.Entry
}

// StartWorker starts a worker that pins one replica of each model. script makes the
// entry that a replica is. The worker ends with the test.
func StartWorker(c *controltest.Cluster, node string, script func(replica string) *sessiontest.Entry, models ...string) *Worker {
	tb := c.TB
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	w := &Worker{Node: node, Addr: l.Addr().String(), script: script, entries: map[string]*sessiontest.Entry{}}
	dir, saved := Identity(c, cluster.Worker, node)
	self := cluster.Node{Addr: w.Addr, Build: "test"}
	for _, m := range models {
		self.Pins = append(self.Pins, cluster.Pin{Model: m, Source: m, TP: 1})
	}
	if w.link, err = link.New(link.Config{Dir: dir, Saved: saved, Self: self, Log: slog.New(slog.DiscardHandler)}); err != nil {
		tb.Fatal(err)
	}
	server, err := h2.NewServer(h2.Config{TLS: w.link.Credentials().Server(identity.ProtocolHTTP), Grace: time.Millisecond}, w)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	loops := pool.New().WithContext(ctx).WithCancelOnError()
	loops.Go(func(ctx context.Context) error { return server.Serve(ctx, l) })
	loops.Go(w.link.Run)
	loops.Go(w.report)
	w.stop = stop
	w.ended = sync.OnceFunc(func() {
		if err := loops.Wait(); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, link.ErrRemoved) {
			tb.Errorf("worker %s: %v", node, err)
		}
	})
	tb.Cleanup(w.Kill)
	return w
}

// Kill ends the worker without a word to the cluster.
func (w *Worker) Kill() {
	w.stop()
	w.ended()
}

// Entry is the script of a replica, nil for one that is not here.
func (w *Worker) Entry(replica string) *sessiontest.Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.entries[replica]
}

// report makes the replicas that are placed here ready.
func (w *Worker) report(ctx context.Context) error {
	told := map[string]uint64{}
	for {
		changed := w.link.View().Changed()
		body := cluster.Report{Node: w.Node}
		for id, r := range w.link.View().State().AllReplicas() {
			if r.Node != w.Node || told[id] == r.Generation {
				continue
			}
			w.mu.Lock()
			if w.entries[id] == nil {
				w.entries[id] = w.script(id)
			}
			w.mu.Unlock()
			body.Replicas = append(body.Replicas, cluster.ReplicaReport{ID: id, Generation: r.Generation, Phase: cluster.Ready, Facts: Facts()})
		}
		if len(body.Replicas) > 0 {
			command, err := cluster.NewCommand(cluster.KindReport, link.NewRequest("report"), time.Now(), body)
			if err != nil {
				return err
			}
			if _, err := w.link.Client().Propose(ctx, command); err == nil {
				for _, r := range body.Replicas {
					told[r.ID] = r.Generation
				}
				continue
			}
		}
		timer := time.NewTimer(50 * time.Millisecond) // a report that failed is repeated
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// ServeHTTP is the entry's side of the call, for the replica that the request's host
// names and for gateways alone.
func (w *Worker) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	e := w.Entry(r.Host)
	peer, err := identity.PeerName(r.TLS)
	if err != nil || peer.Role != cluster.Gateway || e == nil || r.URL.Path != generate.Path || r.ProtoMajor != 2 {
		http.Error(out, "no", http.StatusNotFound)
		return
	}
	serveEntry(out, r, e)
}

func serveEntry(w http.ResponseWriter, r *http.Request, e session.Entry) {
	req, err := generate.DecodeRequest(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s, err := e.Generate(r.Context(), req)
	if err != nil {
		var refused *generate.Error
		if !errors.As(err, &refused) {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(refused.HTTPStatus())
		_ = json.NewEncoder(w).Encode(refused) // the caller is gone if this fails
		return
	}
	defer func() { _ = s.Close() }()
	w.Header().Set("Content-Type", generate.ContentType(protocol.GenerateNewest))
	events := generate.NewWriter(w)
	for {
		ev, err := s.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if events.Write(ev) != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
	}
}

// Await waits until ok.
func Await(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(controltest.Patience); !ok(); <-ticker.C {
		if time.Now().After(deadline) {
			tb.Fatalf("waited for %s in vain", what)
		}
	}
}
