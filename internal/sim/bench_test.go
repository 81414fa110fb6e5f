package sim

import (
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// r2r is the paper's threshold sweep: a share p of the small model's steps is
// handed over, the large model writes one token.
func r2r(n, requests, tokens int, p float64, b int, rule schedule.Rule) Config {
	return Config{
		Models: []Model{
			{Name: "small", Step: []time.Duration{6000 * time.Microsecond}, LongestWait: time.Hour},
			{Name: "large", Step: []time.Duration{27900 * time.Microsecond}, Threshold: b, LongestWait: time.Hour},
		},
		Policy: "random", Settings: policies.Settings{Threshold: &p}, Schedule: rule,
		Requests: Closed(requests, 1, tokens), Concurrency: n,
	}
}

func BenchmarkRequests100(b *testing.B) {
	for _, p := range []float64{0.1, 0.35} {
		b.Run("p="+time.Duration(p*float64(time.Second)).String(), func(b *testing.B) {
			b.ReportAllocs()
			const each = 500
			for b.Loop() {
				if _, err := Run(r2r(8, each, 100, p, 3, schedule.Delayed)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(each)*float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
