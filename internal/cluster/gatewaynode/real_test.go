package gatewaynode

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
	"github.com/tokenrouter/tokenrouter/internal/cluster/workernode"
	"github.com/tokenrouter/tokenrouter/internal/node"
)

// onCPU is a small engine's configuration.
func onCPU(cfg *engine.Config) {
	cfg.Device, cfg.KVTokens, cfg.Workers, cfg.MaxRows = "cpu", 1<<13, 1, 16
}

// realWorker starts a worker whose models run. sources are by served name: what Resolve
// gets; it ends with the test.
func (r *rig) realWorker(name string, sources map[string]engine.Model) *workernode.Node {
	r.t.Helper()
	dir, saved := clustertest.Identity(r.Cluster, cluster.Worker, name)
	own := engine.Defaults()
	onCPU(&own)
	var pins []cluster.Pin
	for model := range sources {
		pins = append(pins, cluster.Pin{Model: model, Source: model, TP: 1})
	}
	n, err := workernode.New(workernode.Config{
		Dir: dir, Saved: saved, Listen: "127.0.0.1:0", Gossip: "127.0.0.1:0", Engine: own, Pins: pins, Build: "test",
		Resolve:      func(source string) (engine.Model, error) { return sources[source], nil },
		DrainTimeout: 5 * time.Second, Log: r.log.logger(),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running conc.WaitGroup
	running.Go(func() {
		if err := n.Run(ctx); err != nil {
			r.t.Errorf("%s: %v", name, err)
		}
	})
	r.t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return n
}

// embedded are models of this binary.
func embedded(names ...string) map[string]engine.Model {
	out := map[string]engine.Model{}
	for _, name := range names {
		out[name] = engine.Model{Name: name}
	}
	return out
}

// served starts a node that serves alone, and returns its URL. It ends with the test.
func served(t *testing.T, change func(*node.Config)) string {
	t.Helper()
	cfg := node.Defaults()
	cfg.Listen = "127.0.0.1:0"
	onCPU(&cfg.Config)
	change(&cfg)
	n, err := node.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running conc.WaitGroup
	running.Go(func() {
		if err := n.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	<-n.Ready()
	return "http://" + n.Addr().String()
}

// server is an address with a key, of one process or of a cluster's gateway.
type server struct {
	t        *testing.T
	url, key string
	http     *http.Client
}

// reply is what a server says to a chat.
type reply struct {
	status  int
	body    string
	Choices []struct {
		Message struct{ Content string }
		Finish  string `json:"finish_reason"`
	}
	Trctl struct {
		Policy string
		Tokens map[string]int
	}
	Error struct{ Param, Message string }
}

// chat asks a deployment with more keys in the body.
func (s *server) chat(deployment, question string, more map[string]any) reply {
	s.t.Helper()
	body := map[string]any{
		"model": deployment, "messages": []any{map[string]string{"role": "user", "content": question}}, "max_tokens": 60, "temperature": 0, "seed": 7,
	}
	for k, v := range more {
		body[k] = v
	}
	text, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/v1/chat/completions", bytes.NewReader(text))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out := reply{status: resp.StatusCode}
	answer, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(answer, &out)
	}
	if err != nil {
		s.t.Fatalf("%s: %v", answer, err)
	}
	out.body = string(answer)
	return out
}

// share is the part of the tokens that models other than the first wrote.
func (r *reply) share(entry string) float64 {
	all := 0
	for _, n := range r.Trctl.Tokens {
		all += n
	}
	if all == 0 {
		return -1
	}
	return 1 - float64(r.Trctl.Tokens[entry])/float64(all)
}

// text is the answer, for messages.
func (r *reply) text() string {
	if len(r.Choices) == 0 {
		return fmt.Sprintf("%d %s", r.status, r.body)
	}
	return r.Choices[0].Message.Content
}
