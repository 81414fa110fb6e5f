package gatewaynode

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
	"github.com/tokenrouter/tokenrouter/internal/apikey"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// logs keeps what everybody has logged.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// rig is a cluster with control nodes, to which tests add workers and gateways.
type rig struct {
	*controltest.Cluster
	t    *testing.T
	log  *logs
	http *http.Client
}

func newRig(t *testing.T, control_ int) *rig {
	t.Helper()
	r := &rig{t: t, log: new(logs), http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(r.http.CloseIdleConnections)
	r.Cluster = controltest.New(t, control_, func(c *control.Config) { c.Log = r.log.logger() })
	return r
}

// worker starts a worker with one replica of the model s, which answers with script.
func (r *rig) worker(node string, script *sessiontest.Script) *clustertest.Worker {
	return clustertest.StartWorker(r.Cluster, node, func(replica string) *sessiontest.Entry {
		return &sessiontest.Entry{ID: replica, Script: script}
	}, "s")
}

// deploy makes the deployment "pair" of the models s and l.
func (r *rig) deploy() {
	r.Propose(r.Leader(), cluster.KindPutDeployment, cluster.Deployment{Name: "pair", Models: []string{"s", "l"}, Policy: "random"})
}

// key makes an API key and returns its text and object.
func (r *rig) key(change func(*cluster.Key)) (string, cluster.Key) {
	r.t.Helper()
	text, k, err := apikey.New(r.Pepper)
	if err != nil {
		r.t.Fatal(err)
	}
	k.Created = time.Now()
	if change != nil {
		change(&k)
	}
	r.Propose(r.Leader(), cluster.KindPutKey, k)
	return text, k
}

// running is a gateway of a rig.
type running struct {
	*Node
	r    *rig
	url  string
	stop context.CancelFunc
	done conc.WaitGroup
	err  error
}

// gateway starts a gateway; it ends with the test.
func (r *rig) gateway(node string) *running {
	r.t.Helper()
	return r.gatewayIn(clustertest.Identity(r.Cluster, cluster.Gateway, node))
}

// gatewayIn starts a gateway that has an identity.
func (r *rig) gatewayIn(dir string, saved *identity.Saved, change ...func(*Config)) *running {
	r.t.Helper()
	cfg := Config{
		Dir: dir, Saved: saved, Listen: "127.0.0.1:0", Gossip: "127.0.0.1:0", Build: "test",
		DrainTimeout: 10 * time.Second, Log: r.log.logger(),
	}
	for _, c := range change {
		c(&cfg)
	}
	n, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	g := &running{Node: n, r: r, url: "http://" + n.Addr().String()}
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.done.Go(func() { g.err = n.Run(ctx) })
	r.t.Cleanup(func() { _ = g.end() }) // a test that minds has seen it
	return g
}

func (g *running) end() error {
	g.stop()
	g.done.Wait()
	return g.err
}

func (g *running) await() *running {
	g.r.t.Helper()
	select {
	case <-g.Ready():
	case <-time.After(controltest.Patience):
		g.r.t.Fatal("the gateway is not ready")
	}
	return g
}

// seen waits until the gateway has a state, such as that of a command.
func (g *running) seen(index uint64) {
	g.r.t.Helper()
	ctx, cancel := context.WithTimeout(g.r.t.Context(), controltest.Patience)
	defer cancel()
	if _, err := g.link.View().Wait(ctx, index); err != nil {
		g.r.t.Fatal(err)
	}
}

// answer is what a client got.
type answer struct {
	status int
	text   string
	epoch  int
	body   string
}

const prompt = "prompt-canary-51"

// open posts a chat request.
func (g *running) open(ctx context.Context, key string, stream bool) (*http.Response, error) {
	body := fmt.Sprintf(`{"model":"pair","stream":%t,"max_tokens":100,"messages":[{"role":"user","content":%q}]}`, stream, prompt)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	return g.r.http.Do(req)
}

// chat asks without a stream.
func (g *running) chat(key string) answer {
	g.r.t.Helper()
	resp, err := g.open(g.r.t.Context(), key, false)
	if err != nil {
		g.r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		g.r.t.Fatal(err)
	}
	var c struct {
		Choices []struct{ Message struct{ Content string } }
		Trctl   struct{ Epoch int }
	}
	if err := json.Unmarshal(body, &c); err != nil {
		g.r.t.Fatalf("%s: %v", body, err)
	}
	a := answer{status: resp.StatusCode, body: string(body), epoch: c.Trctl.Epoch}
	if len(c.Choices) > 0 {
		a.text = c.Choices[0].Message.Content
	}
	return a
}

// get returns the status of a path.
func (g *running) get(path string) int {
	g.r.t.Helper()
	resp, err := g.r.http.Get(g.url + path)
	if err != nil {
		g.r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		g.r.t.Fatal(err)
	}
	return resp.StatusCode
}

// read reads a stream to its end and returns the text, the last epoch, and whether it
// ended well.
func read(body io.Reader) (text string, epoch int, done bool) {
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return text, epoch, true
		}
		var c struct {
			Choices []struct{ Delta struct{ Content string } }
			Trctl   struct{ Epoch int }
		}
		if json.Unmarshal([]byte(data), &c) != nil {
			return text, epoch, false
		}
		for _, choice := range c.Choices {
			text += choice.Delta.Content
		}
		epoch = max(epoch, c.Trctl.Epoch)
	}
	return text, epoch, false
}
