package vllmnames

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// scrape is what a handler says, without comments.
func scrape(t *testing.T, from prometheus.Gatherer) (code int, lines []string) {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(from).ServeHTTP(w, httptest.NewRequest("GET", Path, nil))
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return w.Code, lines
}

func TestNames(t *testing.T) {
	r := prometheus.NewRegistry()
	gauge := func(name string, values map[string]float64) {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name}, []string{"model", "replica"})
		for replica, v := range values {
			g.WithLabelValues("tiny-s", replica).Set(v)
		}
		r.MustRegister(g)
	}
	gauge("trctl_sequences_running", map[string]float64{"tiny-s-1": 3, "tiny-s-2": 0})
	gauge("trctl_kv_pages_held", map[string]float64{"tiny-s-1": 16, "tiny-s-2": 0})
	gauge("trctl_kv_pages_total", map[string]float64{"tiny-s-1": 64, "tiny-s-2": 0})
	gauge("trctl_peer_links", map[string]float64{"tiny-s-1": 1}) // which vLLM has not
	tokens := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trctl_gateway_tokens_total"}, []string{"deployment", "model"})
	tokens.WithLabelValues("tiny", "tiny-s").Add(90)
	tokens.WithLabelValues("tiny", "tiny-l").Add(10)
	tokens.WithLabelValues("tiny-s", "tiny-s").Add(5)
	first := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "trctl_gateway_time_to_first_token_seconds", Buckets: []float64{0.1, 0.2}}, []string{"deployment"})
	for _, seconds := range []float64{0.05, 0.15, 7} {
		first.WithLabelValues("tiny").Observe(seconds)
	}
	r.MustRegister(tokens, first)
	want := `vllm:generation_tokens_total{model_name="tiny"} 100
vllm:generation_tokens_total{model_name="tiny-s"} 5
vllm:gpu_cache_usage_perc{engine="tiny-s-1",model_name="tiny-s"} 0.25
vllm:kv_cache_usage_perc{engine="tiny-s-1",model_name="tiny-s"} 0.25
vllm:num_requests_running{engine="tiny-s-1",model_name="tiny-s"} 3
vllm:num_requests_running{engine="tiny-s-2",model_name="tiny-s"} 0
vllm:time_to_first_token_seconds_bucket{model_name="tiny",le="0.1"} 1
vllm:time_to_first_token_seconds_bucket{model_name="tiny",le="0.2"} 2
vllm:time_to_first_token_seconds_bucket{model_name="tiny",le="+Inf"} 3
vllm:time_to_first_token_seconds_sum{model_name="tiny"} 7.2
vllm:time_to_first_token_seconds_count{model_name="tiny"} 3`
	if code, lines := scrape(t, r); code != 200 || strings.Join(lines, "\n") != want {
		t.Errorf("%d:\n%s", code, strings.Join(lines, "\n"))
	}
}

// All names differ, and each is of one metric.
func TestAliases(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range aliases() {
		if seen[a.name] || a.help == "" || !strings.HasPrefix(a.of, "trctl_") || len(a.labels) == 0 {
			t.Errorf("%+v", a)
		}
		seen[a.name] = true
	}
}

// A fault of the process's own metrics is one of these.
func TestFault(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(broken{})
	if code, _ := scrape(t, r); code != 500 {
		t.Errorf("status %d", code)
	}
}

type broken struct{}

func (broken) Describe(chan<- *prometheus.Desc) {}
func (broken) Collect(ch chan<- prometheus.Metric) {
	err := errors.New("broken")
	ch <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
}
