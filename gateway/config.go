package gateway

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
)

// Deployment is what clients see as one model.
type Deployment struct {
	// Name is the client's "model".
	Name string
	// Models are the served names by model index; 0 is the entry model.
	Models []string
	// Entries are the replicas of the entry model. None means that requests
	// get 503 for now.
	Entries []Entry
	// Policy is the name of the routing policy, reported to clients.
	Policy string
	// MaxContext bounds prompt and answer together, in tokens.
	MaxContext int
	// Vocab is the number of ids of the models.
	Vocab int
	// Defaults are used for sampling parameters that a client leaves out.
	Defaults Defaults
	// Created is reported in the model list; the zero time becomes the gateway's start.
	Created time.Time
}

// Defaults are a checkpoint's own sampling parameters (generation_config.json).
type Defaults struct {
	Temperature float32 // 0 means greedy
	TopP        float32 // 0 and 1 mean no truncation
	TopK        int32   // 0 means no truncation
}

// Config is what a gateway needs. The zero value of every duration and number
// means its default.
type Config struct {
	Deployments []Deployment
	// MaxInFlight bounds the answers being computed at a time (a request with
	// several prompts counts once for each); more get 429. Default 1024.
	MaxInFlight int
	// MaxBody bounds a request's body, in bytes. Default 4 MiB.
	MaxBody int64
	// APIKeys are the SHA-256 hashes of the keys that may use the API. With
	// none the API is open, which is meant for loopback alone.
	APIKeys [][sha256.Size]byte
	// Ready adds to readiness: an error makes /readyz answer 503 with its text.
	// It must be quick. May be nil.
	Ready func() error
	// Metrics receives the gateway's metrics. May be nil.
	Metrics *prometheus.Registry
	// ServeMetrics adds the route /metrics, meant for loopback alone.
	ServeMetrics bool
	// Logger gets one line for every request. May be nil.
	Logger *slog.Logger

	// KeepAlive is the longest silence on a stream before a comment line is
	// sent; negative turns that off. Default 15 s.
	KeepAlive time.Duration
	// RequestTimeout bounds a whole request. Default 30 min.
	RequestTimeout time.Duration
	// WriteTimeout bounds one flush to a client. Default 10 s.
	WriteTimeout time.Duration
	// DrainTimeout is how long streams may go on once Run's context has ended. Default 30 s.
	DrainTimeout time.Duration

	// MaxAttempts bounds consecutive submissions that bring no new token. Default 5.
	MaxAttempts int
	// MaxMoves bounds the re-submissions of one request. Default 32.
	MaxMoves int
	// Backoff is the first pause between submissions to the same entry; it
	// doubles, with jitter, up to 32 times its value. Default 25 ms.
	Backoff time.Duration
	// EjectFor is how long an entry that failed is picked last. Default 2 s.
	EjectFor time.Duration
}

// ErrConfig says that New refused its configuration.
var ErrConfig = errors.New("gateway: bad configuration")

// withDefaults returns a copy with every zero value filled in.
func (c Config) withDefaults() Config {
	setDefault(&c.MaxInFlight, 1024)
	setDefault(&c.MaxBody, openai.MaxBody)
	setDefault(&c.KeepAlive, 15*time.Second)
	setDefault(&c.RequestTimeout, 30*time.Minute)
	setDefault(&c.WriteTimeout, 10*time.Second)
	setDefault(&c.DrainTimeout, 30*time.Second)
	setDefault(&c.MaxAttempts, 5)
	setDefault(&c.MaxMoves, 32)
	setDefault(&c.Backoff, 25*time.Millisecond)
	setDefault(&c.EjectFor, 2*time.Second)
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

// check reports every fault of a configuration with its defaults filled in.
func (c *Config) check() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	if c.MaxInFlight < 0 || c.MaxBody < 0 || c.MaxAttempts < 0 || c.MaxMoves < 0 {
		bad("a limit is negative")
	}
	if c.RequestTimeout < 0 || c.WriteTimeout < 0 || c.DrainTimeout < 0 || c.Backoff < 0 || c.EjectFor < 0 {
		bad("a duration is negative")
	}
	errs = append(errs, checkDeployments(c.Deployments))
	return errors.Join(errs...)
}

func checkDeployments(deployments []Deployment) error {
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
