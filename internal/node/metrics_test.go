package node

import (
	"io"
	"net/http"
	"strings"
	"testing"
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
