package cluster

import (
	"fmt"
	"time"
)

// MeasureEvery is how often a worker tells what its replicas have measured; the leader
// forgets what was not told again for five times as long.
const MeasureEvery = 2 * time.Second

// Bounds of Measures.
const (
	// MaxMeasures bounds the list in one message.
	MaxMeasures = 64
	// MaxMeasuredModels bounds the models of a deployment, MaxMeasuredSteps the batch sizes.
	MaxMeasuredModels = 8
	MaxMeasuredSteps  = 64
)

// Measures is a worker's word about what its replicas have measured. It goes to the
// leader's memory, not into the state.
type Measures struct {
	Node string    `json:"node"`
	List []Measure `json:"list"`
}

// Measure is what one replica has measured of one deployment: what the thresholds of
// that are solved from. Routed, To and Kept are the deployment's; the rest belongs to the
// replica and is the same for all its deployments.
type Measure struct {
	Deployment string `json:"deployment"`
	Replica    string `json:"replica"`
	// Model is the replica's index among the deployment's models.
	Model int `json:"model"`
	// Routed counts the steps of single sequences that were routed. To[k] is the share
	// that went on to model k, Kept[k] the share of those whose token was kept; both of
	// the last steps.
	Routed uint64    `json:"routed"`
	To     []float64 `json:"to"`
	Kept   []float64 `json:"kept"`
	// Steps[b-1] is the time of a step of b sequences without company.
	Steps []StepTime `json:"steps"`
	// Slowdown is how many times as long a step takes while another model of the same
	// process runs.
	Slowdown float64 `json:"slowdown"`
	// Prefill is how much longer first passes of prompts make a step for each of its sequences, in milliseconds.
	Prefill float64 `json:"prefill_each_ms,omitempty"`
	// Hop is the mean time of a hand-off that found this replica waiting, in milliseconds.
	Hop float64 `json:"hop_ms,omitempty"`
	// Live is the number of live requests of the replica's routing group.
	Live int `json:"live,omitempty"`
}

// StepTime is the mean time of N steps, in milliseconds: of those before, alone, and
// while another model ran all the time; 0 where that was not seen.
type StepTime struct {
	N     uint64  `json:"n"`
	MS    float64 `json:"ms"`
	Alone float64 `json:"alone_ms,omitempty"`
	Busy  float64 `json:"busy_ms,omitempty"`
}

// maxMS bounds a time, in milliseconds; most counts are below maxCount.
const (
	maxMS    = 1e6
	maxCount = 1 << 53
)

// Check says what is wrong with a message. Errors wrap ErrCommand.
func (m *Measures) Check() error {
	if len(m.List) > MaxMeasures {
		return fmt.Errorf("%w: %d measures, at most %d are allowed", ErrCommand, len(m.List), MaxMeasures)
	}
	for i := range m.List {
		if err := m.List[i].check(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Measure) check() error {
	bad := func(what string, v any) error {
		return fmt.Errorf("%w: measures of %.*q: %s is %v", ErrCommand, MaxID, m.Replica, what, v)
	}
	within := func(v, low, high float64) bool { return v >= low && v <= high } // false for NaN
	switch {
	case len(m.Deployment) > MaxID || len(m.Replica) > MaxID:
		return bad("the length of a name", max(len(m.Deployment), len(m.Replica)))
	case len(m.To) < 2 || len(m.To) > MaxMeasuredModels || len(m.Kept) != len(m.To):
		return bad("the number of models", len(m.To))
	case m.Model < 0 || m.Model >= len(m.To):
		return bad("the model", m.Model)
	case len(m.Steps) > MaxMeasuredSteps:
		return bad("the number of batch sizes", len(m.Steps))
	case m.Routed > maxCount:
		return bad("routed", m.Routed)
	case !within(m.Slowdown, 0.1, 100):
		return bad("the slowdown", m.Slowdown)
	case !within(m.Prefill, 0, maxMS) || !within(m.Hop, 0, maxMS):
		return bad("a time", [2]float64{m.Prefill, m.Hop})
	case m.Live < 0 || m.Live > 1<<20:
		return bad("live", m.Live)
	}
	sum := 0.0
	for k, share := range m.To {
		if !within(share, 0, 1) || !within(m.Kept[k], 0, 1) {
			return bad("a share", [2]float64{share, m.Kept[k]})
		}
		sum += share
	}
	if m.Routed > 0 && !within(sum, 0.99, 1.01) {
		return bad("the sum of the shares", sum)
	}
	for _, s := range m.Steps {
		if s.N > maxCount || !within(s.MS, 0, maxMS) || !within(s.Alone, 0, maxMS) || !within(s.Busy, 0, maxMS) {
			return bad("a step", s)
		}
	}
	return nil
}
