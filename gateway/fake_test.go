package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// deploy is a deployment "tiny" of two models with the given entries.
func deploy(entries ...session.Entry) session.Deployment {
	return session.Deployment{
		Name: "tiny", Models: []string{"tiny-s", "tiny-l"}, Entries: entries, Policy: "r2r",
		MaxContext: 512, Vocab: 1000, Created: time.Unix(1700000000, 0),
		Defaults: session.Defaults{Temperature: 0.6, TopP: 0.95, TopK: 20},
	}
}

// fixture is a gateway on a test server.
type fixture struct {
	*Gateway
	t        *testing.T
	server   *httptest.Server
	registry *prometheus.Registry
}

// start serves a gateway until the test ends. change may be nil.
func start(t *testing.T, change func(*Config), entries ...session.Entry) *fixture {
	t.Helper()
	f := &fixture{t: t, registry: prometheus.NewRegistry()}
	cfg := Config{Deployments: []session.Deployment{deploy(entries...)}, Metrics: f.registry, ServeMetrics: true, Session: session.Config{Backoff: time.Microsecond}}
	if change != nil {
		change(&cfg)
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.Gateway = g
	f.server = httptest.NewUnstartedServer(g.Handler())
	// Small buffers in the kernel, so that clients which do not read are felt soon.
	f.server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
		return ctx
	}
	f.server.Start()
	t.Cleanup(func() {
		f.server.CloseClientConnections()
		f.server.Close()
		f.server.Client().CloseIdleConnections()
	})
	return f
}

// post sends a body and returns the answer with its whole body.
func (f *fixture) post(path, body string) (*http.Response, string) {
	f.t.Helper()
	return f.send(http.MethodPost, path, body, nil)
}

func (f *fixture) send(method, path, body string, header http.Header) (*http.Response, string) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.server.URL+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := f.server.Client().Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp, string(b)
}

// metric sums the samples of a metric whose labels contain all of want
// ("name=value").
func (f *fixture) metric(name string, want ...string) float64 {
	f.t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += "," + l.GetName() + "=" + l.GetValue()
			}
			matches := true
			for _, w := range want {
				matches = matches && strings.Contains(labels+",", ","+w+",")
			}
			if matches {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// tokenEvents are tokens without text.
func tokenEvents(ids ...int32) []generate.TokenEvent {
	out := make([]generate.TokenEvent, len(ids))
	for i, id := range ids {
		out[i] = generate.TokenEvent{ID: id}
	}
	return out
}
