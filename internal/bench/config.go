package bench

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ErrConfig is in every error about a Config.
var ErrConfig = errors.New("bad benchmark configuration")

// Arrivals is how the open loop spaces its requests.
type Arrivals string

// Arrivals.
const (
	// Poisson draws the gaps from the exponential distribution.
	Poisson Arrivals = "poisson"
	// Constant makes all gaps 1/rate.
	Constant Arrivals = "constant"
)

// Bounds of a Config.
const (
	// MaxConcurrency bounds the requests in flight.
	MaxConcurrency = 1 << 14
	// DefaultInFlight is how many requests the open loop has in flight at most,
	// unless Config.Concurrency says otherwise.
	DefaultInFlight = 1024
	// MaxRate bounds the requests per second of the open loop.
	MaxRate = 1e6
)

// Config is a benchmark: the server, the load, the requests.
type Config struct {
	// URL is the server's address, with or without /v1.
	URL   string
	Model string
	// Key is sent as a bearer token unless it is empty.
	Key      string
	Endpoint Endpoint
	Prompts  Prompts

	// Rate, in requests per second, selects the open loop; 0 the closed loop.
	Rate     float64
	Arrivals Arrivals
	// Concurrency is the number of workers of the closed loop. In the open loop
	// it bounds the requests in flight, 0 means DefaultInFlight.
	Concurrency int

	// The run sends Requests requests, or starts requests for Duration and then
	// waits for those in flight. Exactly one of the two is set.
	Requests int
	Duration time.Duration
	// Warmup requests are sent first, by as many workers, and not counted.
	Warmup int
	// Timeout bounds one request. 0 means none.
	Timeout time.Duration

	Stream    bool
	MaxTokens int // 0: not sent
	IgnoreEOS bool
	// Temperature is sent unless it is nil.
	Temperature *float64
	// Seed is the run's: it decides arrivals and reservoirs. With SendSeed request
	// i carries seed Seed+i.
	Seed     int64
	SendSeed bool

	// Transport sends the requests; nil means HTTP with one idle connection for
	// each request in flight.
	Transport http.RoundTripper
}

// validate returns every fault of c and fills in what 0 stands for.
func (c *Config) validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if u, err := url.Parse(c.URL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		bad("url %q is not an http or https address", c.URL)
	}
	if c.Model == "" {
		bad("no model")
	}
	if c.Endpoint != Chat && c.Endpoint != Completions {
		bad("endpoint %q is neither chat nor completions", c.Endpoint)
	}
	if c.Prompts.field == nil {
		bad("no prompts")
	}
	if c.Rate != 0 {
		if !(c.Rate > 0 && c.Rate <= MaxRate) {
			bad("rate is %g, it must be in (0, %g]", c.Rate, float64(MaxRate))
		}
		if c.Arrivals != Poisson && c.Arrivals != Constant {
			bad("arrivals %q are neither poisson nor constant", c.Arrivals)
		}
		if c.Concurrency == 0 {
			c.Concurrency = DefaultInFlight
		}
	}
	if c.Concurrency < 1 || c.Concurrency > MaxConcurrency {
		bad("concurrency is %d, it must be in [1, %d]", c.Concurrency, MaxConcurrency)
	}
	if (c.Requests > 0) == (c.Duration > 0) || c.Requests < 0 || c.Duration < 0 {
		bad("exactly one of requests and duration must be set")
	}
	if c.Warmup < 0 || c.MaxTokens < 0 || c.Timeout < 0 {
		bad("warmup, max tokens and timeout must not be negative")
	}
	if t := c.Temperature; t != nil && (math.IsNaN(*t) || math.IsInf(*t, 0)) {
		bad("temperature is not a number")
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: %w", ErrConfig, errors.Join(faults...))
	}
	return nil
}

// target is the address that requests go to.
func (c *Config) target() string {
	return strings.TrimSuffix(strings.TrimRight(c.URL, "/"), "/v1") + c.Endpoint.path()
}
