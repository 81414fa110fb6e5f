package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// Config is what a gateway needs. The zero value of every duration and number
// means its default.
type Config struct {
	Deployments []session.Deployment
	// Source makes sure that a model which is not deployed here is deployed nowhere. Nil means
	// that nothing is deployed but what Deployments and Apply say.
	Source Source
	// Session says what to do about entries that fail. Its Metrics and Logger are
	// the gateway's.
	Session session.Config
	// MaxInFlight bounds the answers being computed at a time (a request with
	// several prompts or choices counts once for each); more get 429. Default 1024.
	MaxInFlight int
	// MaxBody bounds a request's body, in bytes. Default 4 MiB.
	MaxBody int64
	// Keys knows who may use the API. Nil leaves it open, which is meant for
	// loopback alone.
	Keys Keys
	// AllowOrigins are the origins whose web pages may use the API, such as
	// "https://chat.example.org"; "*" allows all. A page that the gateway serves
	// itself may always. Default none.
	AllowOrigins []string
	// AllowHosts are names, besides those of loopback, that the Host header of
	// requests over loopback may have, as behind a proxy on the same machine.
	AllowHosts []string
	// Ready adds to readiness: an error makes /readyz answer 503 with its text.
	// It must be quick. May be nil.
	Ready func() error
	// Metrics receives the gateway's metrics. May be nil.
	Metrics *prometheus.Registry
	// Version is the build's, told by /version.
	Version string
	// ServeMetrics adds the route /metrics, meant for loopback alone.
	ServeMetrics bool
	// Logger gets one line for every request. May be nil.
	Logger *slog.Logger

	// KeepAlive is the longest silence on a stream before a comment line is
	// sent; negative turns that off. Default 15 s.
	KeepAlive time.Duration
	// RequestTimeout bounds a whole request. Default 30 min.
	RequestTimeout time.Duration
	// SlowAfter is how long a client may take nothing of what is sent to it
	// before its request is ended. Default 30 s.
	SlowAfter time.Duration
	// WriteTimeout is how long the error that tells such a client may take.
	// Default 10 s.
	WriteTimeout time.Duration
	// DrainTimeout is how long streams may go on once Run's context has ended. Default 30 s.
	DrainTimeout time.Duration
}

// ErrConfig says that New refused its configuration.
var ErrConfig = errors.New("gateway: bad configuration")

// withDefaults returns a copy with every zero value filled in.
func (c Config) withDefaults() Config {
	setDefault(&c.MaxInFlight, 1024)
	setDefault(&c.MaxBody, openai.MaxBody)
	setDefault(&c.KeepAlive, 15*time.Second)
	setDefault(&c.RequestTimeout, 30*time.Minute)
	setDefault(&c.SlowAfter, 30*time.Second)
	setDefault(&c.WriteTimeout, 10*time.Second)
	setDefault(&c.DrainTimeout, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Session.Logger = c.Logger
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
	if c.MaxInFlight < 0 || c.MaxBody < 0 {
		errs = append(errs, fmt.Errorf("%w: a limit is negative", ErrConfig))
	}
	if c.RequestTimeout < 0 || c.SlowAfter < 0 || c.WriteTimeout < 0 || c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("%w: a duration is negative", ErrConfig))
	}
	for _, o := range c.AllowOrigins {
		if !ValidOrigin(o) {
			errs = append(errs, fmt.Errorf("%w: allowed origin %q is neither * nor scheme://host", ErrConfig, o))
		}
	}
	if err := c.Session.Check(); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrConfig, err))
	}
	return errors.Join(errs...)
}
