package measured

import (
	"context"

	"github.com/tokenrouter/tokenrouter/policies/threshold"
)

// Better says whether a table of thresholds promises LeastGain times as much as the thresholds in use, where in is what both are for:
// for live requests, or for half as many, a quarter and so on. Inputs may stay the same for long while fewer requests come, so a
// table that is not needed at the present number may be later. table has in.N entries, entry n-1 for n requests; present gives the
// thresholds in use for a number of requests. promised is what the table promises for live requests, in tokens a second.
func Better(ctx context.Context, in *threshold.Input, live int, table [][]int, present func(n int) []int) (promised float64, better bool, err error) {
	live = max(1, min(live, in.N))
	promised, better, err = gains(ctx, At(in, live), table[live-1], present(live))
	for n := live / 2; n >= 1 && !better && err == nil; n /= 2 {
		_, better, err = gains(ctx, At(in, n), table[n-1], present(n))
	}
	return promised, better, err
}

// gains compares thresholds for in.N requests.
func gains(ctx context.Context, in *threshold.Input, found, present []int) (promised float64, better bool, err error) {
	if promised, err = Predict(ctx, in, threshold.Clamp(found, in.N)); err != nil {
		return 0, false, err
	}
	used, err := Predict(ctx, in, threshold.Clamp(present, in.N))
	return promised, promised > used*LeastGain, err
}
