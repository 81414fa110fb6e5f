package node

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Every promised metric is served, once for each replica and no finer.
func TestMetricsOfReplicas(t *testing.T) {
	r := start(t, nil)
	resp, err := http.Get(r.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(body), "\n")
	for _, name := range []string{
		"kv_pages_cached", "prefix_cache_queries_total", "prefix_cache_hits_total", "prefix_cache_evictions_total", "preemptions_total",
		"sequences_paused", "admissions_total", "queue_wait_seconds_total", "batch_waits_total", "batch_wait_seconds_total",
		"batch_rows_count", "step_duration_seconds_count",
	} {
		n := 0
		for _, line := range lines {
			if strings.HasPrefix(line, "trctl_"+name+"{") {
				n++
			}
		}
		if n != 2 {
			t.Errorf("trctl_%s: %d series, want one for each of 2 replicas", name, n)
		}
	}
	for _, name := range []string{"go_goroutines ", "process_open_fds "} {
		if !strings.Contains(string(body), "\n"+name) {
			t.Errorf("no %s", name)
		}
	}
}

// The same under vLLM's names, after an answer.
func TestMetricsUnderOtherNames(t *testing.T) {
	r := start(t, nil)
	body := `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":5,"ignore_eos":true}`
	answer, err := http.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", answer.StatusCode, err)
	}
	lacking, text := []string(nil), ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); { // the request is counted after its answer
		resp, err := http.Get(r.url + "/metrics/vllm")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		lacking, text = nil, string(body)
		for _, line := range []string{
			`vllm:num_requests_waiting{engine="tiny-s-0",model_name="tiny-s"} 0`,
			`vllm:num_requests_running{engine="tiny-l-0",model_name="tiny-l"} 0`,
			`vllm:kv_cache_usage_perc{engine="tiny-l-0",model_name="tiny-l"} 0`,
			`vllm:num_preemptions_total{engine="tiny-l-0",model_name="tiny-l"} 0`,
			`vllm:generation_tokens_total{model_name="tiny"} 5`,
			`vllm:prompt_tokens_total{model_name="tiny"} `,
			`vllm:time_to_first_token_seconds_count{model_name="tiny"} 1`,
			`vllm:inter_token_latency_seconds_count{model_name="tiny"} `,
			`vllm:e2e_request_latency_seconds_count{model_name="tiny"} 1`,
		} {
			if !strings.Contains(text, "\n"+line) {
				lacking = append(lacking, line)
			}
		}
		if lacking == nil {
			return
		}
	}
	t.Errorf("lacking %s:\n%s", strings.Join(lacking, "\n"), text)
}
