package tuner

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/policies/threshold"
	"github.com/tokenrouter/tokenrouter/policies/threshold/measured"
)

// Solve finds the best thresholds for every number of live requests up to j.Input.N. It
// reports false if they promise too little over those in use, for j.Live requests and for fewer. It
// takes one core for some seconds, or until ctx ends.
func Solve(ctx context.Context, now time.Time, j *Job) (table cluster.Table, better bool, err error) {
	system, err := j.Input.System()
	if err != nil {
		return table, false, fmt.Errorf("inputs of %s: %w", j.Deployment, err)
	}
	entries, err := threshold.Table(ctx, system.Case)
	if err != nil {
		return table, false, fmt.Errorf("thresholds of %s: %w", j.Deployment, err)
	}
	table.Deployment, table.Solved = j.Deployment, now
	for i, e := range entries {
		table.B = append(table.B, threshold.Clamp(e.B, i+1))
	}
	if table.Inputs, err = json.Marshal(j.Input); err != nil {
		return table, false, fmt.Errorf("inputs of %s: %w", j.Deployment, err)
	}
	present := func(n int) []int { return j.Present[min(n, len(j.Present))-1] }
	if len(j.Present) == 0 {
		present = func(n int) []int { return table.B[n-1] }
	}
	if table.Predicted, better, err = measured.Better(ctx, j.Input, j.Live, table.B, present); err != nil {
		return table, false, fmt.Errorf("prediction for %s: %w", j.Deployment, err)
	}
	return table, better || len(j.Present) == 0, nil
}
