package bench

import (
	"encoding/json"
	"math/rand/v2"
	"sync"
	"time"
)

// maxNames bounds the models and finish reasons that are told apart.
const maxNames = 64

// tally adds up outcomes; many requests add at the same time.
type tally struct {
	mu sync.Mutex

	succeeded, failed int
	failures          failures
	// first and last are the ends of the measured time.
	first, last time.Time

	output, input  int64
	counted        int // successes whose tokens the server counted
	uncounted      int // successes whose tokens nobody knows
	pieces, reads  int64
	streamedTokens int64
	finish         map[string]int

	latency, ttft, gap, perToken, speed *series
	delay, inputs, outputs              *series

	extended int // successes with our extension
	policy   string
	models   []string
	byModel  map[string]int64
	large    int64
	routed   int64
}

func newTally(seed uint64, limit int) *tally {
	t := &tally{failures: failures{}, finish: map[string]int{}, byModel: map[string]int64{}}
	rng := rand.New(rand.NewPCG(seed, 2))
	for _, s := range []**series{&t.latency, &t.ttft, &t.gap, &t.perToken, &t.speed, &t.delay, &t.inputs, &t.outputs} {
		*s = newSeries(limit, rng)
	}
	return t
}

func (t *tally) progress() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Progress{Done: t.succeeded + t.failed, Failed: t.failed, Tokens: t.output}
}

// add counts one outcome.
func (t *tally) add(o *outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first.IsZero() || o.sent.Before(t.first) {
		t.first = o.sent
	}
	if o.end.After(t.last) {
		t.last = o.end
	}
	t.delay.add(max(0, o.sent.Sub(o.start).Seconds()))
	if o.failure != nil {
		t.failed++
		t.failures.add(o.failure)
		return
	}
	t.succeeded++
	count(t.finish, clip(o.finish, maxCodeBytes), 1)
	latency := o.end.Sub(o.sent).Seconds()
	t.latency.add(latency)
	n, known := o.tokens()
	t.output += n
	switch {
	case !known:
		t.uncounted++
	default:
		t.outputs.add(float64(n))
	}
	if o.counted {
		t.counted++
	}
	if o.prompt > 0 {
		t.input += o.prompt
		t.inputs.add(float64(o.prompt))
	}
	t.times(o, n, latency)
	if len(o.extension) > 0 {
		t.routing(o.extension)
	}
}

// times adds what depends on streaming.
func (t *tally) times(o *outcome, tokens int64, latency float64) {
	if o.first.IsZero() {
		if tokens > 0 && latency > 0 {
			t.speed.add(float64(tokens) / latency)
		}
		return
	}
	t.pieces += int64(o.pieces)
	t.reads += int64(o.reads)
	t.streamedTokens += tokens
	t.ttft.add(o.first.Sub(o.sent).Seconds())
	for _, gap := range o.gaps {
		t.gap.add(gap)
	}
	if between := o.final.Sub(o.first).Seconds(); tokens > 1 && between > 0 {
		t.perToken.add(between / float64(tokens-1))
		t.speed.add(float64(tokens-1) / between)
	}
}

// routing adds what our extension says of one answer. An extension that does not
// look like ours is ignored.
func (t *tally) routing(text []byte) {
	var x struct {
		Policy string           `json:"policy"`
		Models []string         `json:"models"`
		Tokens map[string]int64 `json:"tokens"`
	}
	if json.Unmarshal(text, &x) != nil || len(x.Models) == 0 || len(x.Models) > maxNames {
		return
	}
	t.extended++
	t.policy, t.models = clip(x.Policy, maxCodeBytes), t.models[:0]
	for i, name := range x.Models {
		n := min(max(0, x.Tokens[name]), maxCount)
		name = clip(name, maxMessageBytes)
		t.models = append(t.models, name)
		count(t.byModel, name, n)
		t.routed += n
		if i > 0 {
			t.large += n
		}
	}
}

// count adds n to what m has under name, or under "other" when m is full.
func count[N int | int64](m map[string]N, name string, n N) {
	if _, ok := m[name]; !ok && len(m) >= maxNames {
		name = "other"
	}
	m[name] += n
}
