package controlnode

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/trace"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Bounds of asking the workers for what they remember of a request.
const (
	traceTime = 2 * time.Second
	// maxTraceAnswer bounds a worker's answer, in bytes.
	maxTraceAnswer = 4 << 20
	// tracesAtOnce bounds the workers that are asked at a time.
	tracesAtOnce = 16
)

// serveTrace asks all workers for a request.
func (n *Node) serveTrace(w http.ResponseWriter, r *http.Request) {
	var request operator.TraceRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, cluster.MaxCall)).Decode(&request); err != nil {
		refuse(w, http.StatusBadRequest, client.Problem(fmt.Errorf("%w: %w", client.ErrBadRequest, err)))
		return
	}
	if _, err := trace.ID(request.ID); err != nil {
		refuse(w, http.StatusBadRequest, client.Problem(fmt.Errorf("%w: %w", client.ErrBadRequest, err)))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(n.traceOf(r.Context(), request.ID)) // the caller is gone if this fails
}

// traceOf puts together what the workers remember.
func (n *Node) traceOf(ctx context.Context, id string) operator.Trace {
	ctx, cancel := context.WithTimeout(ctx, traceTime)
	defer cancel()
	var mu sync.Mutex
	out := operator.Trace{Parts: []trace.Part{}}
	group := pool.New().WithMaxGoroutines(tracesAtOnce)
	for name, node := range n.State().AllNodes() {
		if node.Role != cluster.Worker {
			continue
		}
		group.Go(func() {
			parts, err := n.askTrace(ctx, &node, id)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				n.cfg.Log.Debug("worker not asked for a trace", "node", name, "err", err)
				out.Silent = append(out.Silent, name)
			}
			out.Parts = append(out.Parts, parts...)
		})
	}
	group.Wait()
	trace.Sort(out.Parts)
	slices.Sort(out.Silent)
	return out
}

// askTrace asks one worker.
func (n *Node) askTrace(ctx context.Context, node *cluster.Node, id string) (parts []trace.Part, err error) {
	t, err := h2.NewTransport(h2.Config{
		TLS: n.credentials.Client(identity.ProtocolHTTP, node.ID, cluster.Worker),
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", node.Addr)
		},
		Log: n.cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = t.Close() }() // it was only read from
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+node.Addr+trace.Path+"?id="+id, nil)
	if err != nil {
		return nil, err
	}
	response, err := t.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %s", client.ErrInternal, response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxTraceAnswer)).Decode(&parts); err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	return parts, nil
}
