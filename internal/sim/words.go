package sim

import (
	"errors"

	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
	"github.com/tokenrouter/tokenrouter/worker/step"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

const (
	vocabulary = 1 << 10
	// adopting is left out: prompts are alike, and a prefix cache would make them
	// cheaper than those of a real load.
	adopting = step.FAdopt
)

// script draws a token, an entropy and a score from seed, model and position.
func script(cfg executor.SeqConfig, ids []int32) fakeexec.Sampled {
	h := mix(cfg.Sampling.Seed ^ uint64(cfg.Model)<<56 ^ uint64(len(ids))<<32)
	return fakeexec.Sampled{
		Token:   int32(h % vocabulary),
		Entropy: float32(unit(mix(h+1)) * logVocabulary),
		Score:   float32(unit(mix(h + 2))),
	}
}

const logVocabulary = 6.931471805599453 // ln 1024

// mix is the finaliser of the splitmix64 generator.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// unit maps the top 24 bits to [0, 1), so that float32 holds the result exactly.
func unit(x uint64) float64 { return float64(x>>40) / (1 << 24) }

// wordless is a vocabulary without text.
type wordless struct{}

var errNoText = errors.New("simulated models read no text")

func (wordless) Encode(string) ([]int32, error)     { return nil, errNoText }
func (wordless) NewDecoder(bool) subservice.Decoder { return wordless{} }
func (wordless) TokenBytes(int32) []byte            { return nil }
func (wordless) Size() int                          { return vocabulary }
func (wordless) Next(int32) string                  { return "" }
func (wordless) Flush() string                      { return "" }

// alongPath is the policy that follows each request's path: every token is kept,
// and the model that writes the next one goes on.
type alongPath struct {
	requests []Request
	self     policies.ModelID
}

// at is the model that writes token n of a request; the last one's is itself.
func (p *alongPath) at(q *policies.Req, n int) policies.ModelID {
	path := p.requests[q.ID-1].Path
	if n >= len(path) {
		return p.self
	}
	return path[n]
}

// Spec implements policies.Policy.
func (p *alongPath) Spec() policies.Spec { return policies.Spec{} }

// Route implements policies.Policy.
func (p *alongPath) Route(b *policies.Batch, _ *policies.Result, out []policies.Decision) {
	for i, q := range b.Reqs {
		out[i] = policies.Decision{To: p.at(q, len(q.Out)+1), Keep: true}
	}
}

// Send implements policies.Policy.
func (p *alongPath) Send(*policies.Req, policies.Decision, *policies.Handoff) {}

// Receive implements policies.Policy. A request whose first token is another
// model's is passed on at once.
func (p *alongPath) Receive(q *policies.Req, _ *policies.Handoff) (policies.Verdict, policies.ModelID) {
	if next := p.at(q, len(q.Out)); next != p.self {
		return policies.Bounce, next
	}
	return policies.Run, p.self
}
