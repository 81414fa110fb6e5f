package cudaexec

import (
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	for _, tc := range []struct {
		last [2]time.Duration
		want time.Duration
	}{
		{[2]time.Duration{}, 200 * us},
		{[2]time.Duration{us, us}, 200 * us},
		{[2]time.Duration{ms, ms}, 1500 * us},
		{[2]time.Duration{40 * ms, ms}, 1500 * us}, // a prefill between decodes
		{[2]time.Duration{ms, 40 * ms}, 1500 * us},
		{[2]time.Duration{1900 * us, 1900 * us}, 2 * ms},
		{[2]time.Duration{5 * ms, 6 * ms}, 200 * us}, // would end asleep anyway
	} {
		if got := patience(tc.last); got != tc.want {
			t.Errorf("after waits of %v: %v, want %v", tc.last, got, tc.want)
		}
	}
}
