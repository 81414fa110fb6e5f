package vllmnames

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Path is where the metrics are served, beside /metrics.
const Path = "/metrics/vllm"

// Handler serves what from has under vLLM's names.
func Handler(from prometheus.Gatherer) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(&second{from}) // a collector that describes nothing is never refused
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// alias is a second name of a metric.
type alias struct {
	name, help string
	// of is the metric, over the one that it is divided by, if any.
	of, over string
	// labels are vLLM's labels by ours. Series that differ in none of them are added up.
	labels map[string]string
}

// aliases are all second names. model_name is the name that clients ask for where the
// gateway has measured, and the replica's own model where that has.
func aliases() []alias {
	replica := map[string]string{"model": "model_name", "replica": "engine"}
	served := map[string]string{"deployment": "model_name"}
	const pages = "Share of the slots for keys and values that are in use; 1 is all."
	const between = "Seconds between two tokens of one answer."
	return []alias{
		{name: "num_requests_running", help: "Requests that are being computed.", of: "trctl_sequences_running", labels: replica},
		{name: "num_requests_waiting", help: "Requests that wait to be computed.", of: "trctl_sequences_queued", labels: replica},
		{name: "kv_cache_usage_perc", help: pages, of: "trctl_kv_pages_held", over: "trctl_kv_pages_total", labels: replica},
		{name: "gpu_cache_usage_perc", help: pages + " The former name of kv_cache_usage_perc.", of: "trctl_kv_pages_held", over: "trctl_kv_pages_total", labels: replica},
		{name: "num_preemptions_total", help: "Requests that gave their memory back to make room.", of: "trctl_preemptions_total", labels: replica},
		{name: "prompt_tokens_total", help: "Tokens of prompts.", of: "trctl_gateway_prompt_tokens_total", labels: served},
		{name: "generation_tokens_total", help: "Tokens of answers.", of: "trctl_gateway_tokens_total", labels: served},
		{name: "time_to_first_token_seconds", help: "Seconds to the first token.", of: "trctl_gateway_time_to_first_token_seconds", labels: served},
		{name: "inter_token_latency_seconds", help: between, of: "trctl_gateway_inter_token_latency_seconds", labels: served},
		{name: "time_per_output_token_seconds", help: between + " The former name of inter_token_latency_seconds.", of: "trctl_gateway_inter_token_latency_seconds", labels: served},
		{name: "e2e_request_latency_seconds", help: "Seconds to the end of the answer.", of: "trctl_gateway_request_duration_seconds", labels: served},
	}
}

// second collects the aliases of what another gatherer has.
type second struct{ from prometheus.Gatherer }

// Describe implements prometheus.Collector: which of the metrics there are is seen only
// when they are collected.
func (*second) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *second) Collect(ch chan<- prometheus.Metric) {
	own, err := s.from.Gather()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	known := map[string][]*value{}
	for _, family := range own {
		for _, m := range family.GetMetric() {
			v := &value{labels: map[string]string{}}
			for _, l := range m.GetLabel() {
				v.labels[l.GetName()] = l.GetValue()
			}
			switch h := m.GetHistogram(); {
			case m.GetGauge() != nil:
				v.kind, v.number = prometheus.GaugeValue, m.GetGauge().GetValue()
			case m.GetCounter() != nil:
				v.kind, v.number = prometheus.CounterValue, m.GetCounter().GetValue()
			case h != nil:
				v.buckets, v.number, v.count = map[float64]uint64{}, h.GetSampleSum(), h.GetSampleCount()
				for _, b := range h.GetBucket() {
					if !math.IsInf(b.GetUpperBound(), 1) {
						v.buckets[b.GetUpperBound()] = b.GetCumulativeCount()
					}
				}
			}
			known[family.GetName()] = append(known[family.GetName()], v)
		}
	}
	for _, a := range aliases() {
		a.collect(ch, known)
	}
}

// value is one series. Of a histogram the number is the sum, and buckets are not nil.
type value struct {
	labels  map[string]string
	kind    prometheus.ValueType
	number  float64
	count   uint64
	buckets map[float64]uint64
}

// add adds another series of the same kind.
func (v *value) add(o *value) {
	v.number += o.number
	v.count += o.count
	for bound, n := range o.buckets {
		v.buckets[bound] += n
	}
}

func (a *alias) collect(ch chan<- prometheus.Metric, known map[string][]*value) {
	ours := slices.Sorted(maps.Keys(a.labels))
	theirs := make([]string, len(ours))
	for i, name := range ours {
		theirs[i] = a.labels[name]
	}
	desc := prometheus.NewDesc("vllm:"+a.name, a.help+" trctl's own name: "+strings.TrimSuffix(a.of+" / "+a.over, " / ")+".", theirs, nil)
	sums, keys := sum(known[a.of], ours)
	under, _ := sum(known[a.over], ours)
	for _, key := range keys {
		v := sums[key]
		if a.over != "" {
			if under[key] == nil || under[key].number == 0 {
				continue
			}
			v.number /= under[key].number
		}
		labels := make([]string, len(ours))
		for i, name := range ours {
			labels[i] = v.labels[name]
		}
		if v.buckets != nil {
			ch <- prometheus.MustNewConstHistogram(desc, v.count, v.number, v.buckets, labels...)
			continue
		}
		ch <- prometheus.MustNewConstMetric(desc, v.kind, v.number, labels...)
	}
}

// sum adds up the series that agree in the named labels, by these. keys are in order.
func sum(list []*value, names []string) (sums map[string]*value, keys []string) {
	sums = map[string]*value{}
	for _, v := range list {
		var key strings.Builder
		for _, name := range names {
			key.WriteString(v.labels[name] + "\x00")
		}
		if known := sums[key.String()]; known != nil {
			known.add(v)
			continue
		}
		own := *v
		own.buckets = maps.Clone(v.buckets)
		sums[key.String()] = &own
		keys = append(keys, key.String())
	}
	slices.Sort(keys)
	return sums, keys
}
