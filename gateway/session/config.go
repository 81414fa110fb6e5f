package session

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

// Config says what sessions do about entries that fail. The zero value of every
// field means its default.
type Config struct {
	// MaxAttempts bounds consecutive submissions that bring no new token. Default 5.
	MaxAttempts int
	// HearWithin is how long a request waits for an entry to hear of its deployment, in place
	// of MaxAttempts: what was applied a moment ago reaches gateways and workers one after
	// the other. Default 3 s.
	HearWithin time.Duration
	// MaxMoves bounds the re-submissions of one request. Default 32.
	MaxMoves int
	// Backoff is the first pause between submissions to the same entry; it
	// doubles, with jitter, up to 32 times its value. Default 25 ms.
	Backoff time.Duration
	// EjectFor is how long an entry that failed is picked last. Default 2 s.
	EjectFor time.Duration
	// StallAfter is how long an entry may be silent before it counts as lost;
	// negative turns that off. It counts from the first sign of life after
	// admission (a token or an EventAlive) and only while the session waits for
	// the entry, so neither a queue nor a slow client is mistaken for a stall.
	// Default 30 s, six times generate.AliveEvery.
	StallAfter time.Duration
	// Metrics counts. Nil counts nothing.
	Metrics *Metrics
	// Logger gets a line for every move. May be nil.
	Logger *slog.Logger
}

// ErrConfig says that a configuration was refused.
var ErrConfig = errors.New("session: bad configuration")

// WithDefaults returns a copy with every zero value filled in.
func (c Config) WithDefaults() Config {
	setDefault(&c.MaxAttempts, 5)
	setDefault(&c.HearWithin, 3*time.Second)
	setDefault(&c.MaxMoves, 32)
	setDefault(&c.Backoff, 25*time.Millisecond)
	setDefault(&c.EjectFor, 2*time.Second)
	setDefault(&c.StallAfter, 30*time.Second)
	if c.Metrics == nil {
		c.Metrics = newMetrics("")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Check reports the faults of a configuration. Errors wrap ErrConfig.
func (c *Config) Check() error {
	if c.MaxAttempts < 0 || c.MaxMoves < 0 || c.Backoff < 0 || c.EjectFor < 0 || c.HearWithin < 0 {
		return fmt.Errorf("%w: a limit is negative", ErrConfig)
	}
	return nil
}

// Deployment is what clients see as one model.
type Deployment struct {
	// Name is the client's "model".
	Name string
	// Models are the served names by model index; 0 is the entry model.
	Models []string
	// Entries are the replicas of the entry model. None means that requests
	// are refused for now.
	Entries []Entry
	// Policy is the name of the routing policy, reported to clients.
	Policy string
	// Overrides are the policies that requests may choose, this one included; none
	// means that requests may override nothing.
	Overrides []PolicyChoice
	// MaxContext bounds prompt and answer together, in tokens.
	MaxContext int
	// Vocab is the number of ids of the models.
	Vocab int
	// Defaults are used for sampling parameters that a client leaves out.
	Defaults Defaults
	// Created is reported in the model list; the zero time becomes the start.
	Created time.Time
}

// PolicyChoice is a policy that requests may choose. From and To are the range of
// its threshold, if it has one.
type PolicyChoice struct {
	Policy       string
	HasThreshold bool
	From, To     float64
	// Lacks is what keeps it from being chosen, for clients; empty if nothing does.
	Lacks string
}

// Defaults are a checkpoint's own sampling parameters (generation_config.json).
type Defaults struct {
	Temperature float32 // 0 means greedy
	TopP        float32 // 0 and 1 mean no truncation
	TopK        int32   // 0 means no truncation
}

// CheckDeployments reports every fault of a list of deployments. Errors wrap
// ErrConfig.
func CheckDeployments(deployments []Deployment) error {
	var errs []error
	names := make(map[string]bool, len(deployments))
	for i := range deployments {
		d := &deployments[i]
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%w: deployments[%d] %q: "+format, append([]any{ErrConfig, i, d.Name}, args...)...))
		}
		switch {
		case d.Name == "" || len(d.Name) > generate.MaxName:
			bad("name of %d bytes", len(d.Name))
		case names[d.Name]:
			bad("name is used twice")
		case len(d.Models) == 0 || len(d.Models) > generate.MaxModels:
			bad("%d models", len(d.Models))
		case d.MaxContext < 1 || d.MaxContext > generate.MaxIDs:
			bad("context of %d tokens", d.MaxContext)
		case d.Vocab < 1:
			bad("vocabulary of %d ids", d.Vocab)
		case !(d.Defaults.Temperature >= 0 && d.Defaults.Temperature <= 2) ||
			!(d.Defaults.TopP >= 0 && d.Defaults.TopP <= 1) || d.Defaults.TopK < 0:
			bad("default sampling parameters out of range")
		}
		names[d.Name] = true
		seen := make(map[string]bool, len(d.Entries))
		for _, e := range d.Entries {
			if e == nil || seen[e.Name()] {
				bad("an entry is nil or named twice")
				break
			}
			seen[e.Name()] = true
		}
	}
	return errors.Join(errs...)
}
