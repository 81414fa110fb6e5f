package session

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// MaxChoices bounds the answers to one prompt.
const MaxChoices = 8

// Settings are how an answer is to be computed. Nil means the deployment's
// default; zero values are neutral.
type Settings struct {
	Temperature, TopP *float64
	TopK              *int32
	MinP              float64

	RepetitionPenalty, FrequencyPenalty, PresencePenalty float64
	// LogitBias is added to the logits, by id.
	LogitBias map[int32]float32

	// Seed makes the answer repeatable. Nil draws one.
	Seed *uint64
	// MaxTokens bounds the answer; 0 means the rest of the context, unless Echo
	// is set and NoTokens.
	MaxTokens int32
	// NoTokens asks for the prompt alone. It needs Echo.
	NoTokens bool
	// MinTokens is the least length: until then neither end tokens nor stops count.
	MinTokens int32
	// Logprobs is the number of alternatives reported with every token; -1 means
	// no log-probabilities.
	Logprobs int32
	// Stops are strings, StopIDs tokens, that end the answer.
	Stops     []string
	StopIDs   []int32
	IgnoreEOS bool
	// Echo asks for the prompt's tokens too.
	Echo bool
	// N is the number of answers to every prompt; 0 means 1.
	N int
	// Salt keys the prefix cache (generate.Request.Salt).
	Salt []byte
	// Routing is what the request wants of the deployment's routing; nil for nothing.
	Routing *routing.Override
	// Session is the client's name of the conversation (generate.Request.Session).
	// One that is too long is replaced by its hash.
	Session string
}

// ErrSettings says that settings are out of bounds. The error also holds a
// *sampling.FieldError that names the parameter as clients know it.
var ErrSettings = errors.New("session: bad settings")

func badSetting(field, format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrSettings, &sampling.FieldError{Field: field, Problem: fmt.Sprintf(format, args...)})
}

// minTopP keeps a tiny top_p from becoming zero in single precision. Any value
// this small keeps the most probable token alone.
const minTopP = 1e-9

// Requests returns the requests for a prompt: N of them, in order of choice.
// prompt has the prompt's fields set. Errors wrap ErrSettings.
//
// The first choice draws with the seed itself, so it is the answer of N = 1;
// choice i draws with the i-th value of SplitMix64 that starts from the seed.
func (d *Served) Requests(set *Settings, prompt generate.Request) ([]Request, error) {
	if err := set.check(d); err != nil {
		return nil, err
	}
	r := Request{Request: prompt, Stops: set.Stops}
	r.Deployment, r.IgnoreEOS, r.Echo, r.Salt = d.Name, set.IgnoreEOS, set.Echo, set.Salt
	r.Routing = d.override(set.Routing)
	if r.Session = set.Session; len(r.Session) > generate.MaxSession {
		sum := sha256.Sum256([]byte(r.Session))
		r.Session = hex.EncodeToString(sum[:])
	}
	r.Sampling = d.params(set)
	if set.MaxTokens == 0 && !set.NoTokens {
		r.DefaultMaxTokens = true
		r.Sampling.MaxTokens = int32(d.MaxContext)
	}
	if err := r.Sampling.Check(d.Vocab); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSettings, err)
	}
	seed := r.Sampling.Seed
	out := make([]Request, max(set.N, 1))
	for i := range out {
		out[i] = r
		out[i].ID = random64()
		out[i].Sampling.Seed = choiceSeed(seed, i)
	}
	return out, nil
}

// check reports what the sampling parameters' own check does not see.
func (set *Settings) check(d *Served) error {
	switch {
	case set.N < 0 || set.N > MaxChoices:
		return badSetting("n", "expected 1 to %d, found %d", MaxChoices, set.N)
	case len(set.Stops) > MaxStops:
		return badSetting("stop", "expected at most %d strings, found %d", MaxStops, len(set.Stops))
	case set.MaxTokens < 0 || int(set.MaxTokens) > d.MaxContext:
		return badSetting("max_tokens", "expected 1 to %d, found %d", d.MaxContext, set.MaxTokens)
	case set.NoTokens && !set.Echo:
		return badSetting("max_tokens", "expected at least 1 without echo")
	}
	for _, s := range set.Stops {
		if len(s) == 0 || len(s) > MaxStopBytes {
			return badSetting("stop", "expected strings of 1 to %d bytes, found %d", MaxStopBytes, len(s))
		}
	}
	for _, id := range set.StopIDs {
		if int(id) >= d.Vocab {
			return badSetting("stop_token_ids", "id %d is outside the vocabulary of %d", id, d.Vocab)
		}
	}
	return d.checkRouting(set.Routing)
}

// params fills the defaults in.
func (d *Served) params(set *Settings) sampling.Params {
	p := sampling.Params{
		Temperature: d.Defaults.Temperature, TopP: d.Defaults.TopP, TopK: d.Defaults.TopK, MinP: float32(set.MinP),
		RepetitionPenalty: float32(set.RepetitionPenalty), FrequencyPenalty: float32(set.FrequencyPenalty),
		PresencePenalty: float32(set.PresencePenalty),
		MaxTokens:       set.MaxTokens, MinTokens: set.MinTokens, Logprobs: set.Logprobs, StopIDs: set.StopIDs,
	}
	if set.Temperature != nil {
		p.Temperature = float32(*set.Temperature)
	}
	if set.TopP != nil {
		p.TopP = max(float32(*set.TopP), minTopP)
	}
	if set.TopK != nil {
		p.TopK = min(*set.TopK, int32(d.Vocab))
	}
	for id, v := range set.LogitBias {
		p.LogitBias = append(p.LogitBias, sampling.Bias{ID: id, Value: v})
	}
	slices.SortFunc(p.LogitBias, func(a, b sampling.Bias) int { return cmp.Compare(a.ID, b.ID) })
	if set.Seed != nil {
		p.Seed = *set.Seed
	} else {
		p.Seed = random64()
	}
	return p
}

// choiceSeed is the seed of choice i of a request.
func choiceSeed(seed uint64, i int) uint64 {
	if i == 0 {
		return seed
	}
	z := seed + uint64(i)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// random64 draws a request's id or seed.
func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}
