package node

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/tokenrouter/tokenrouter/engine"
)

// Config says what a process serves.
type Config struct {
	// Config is the engine's. Its Metrics are the node's.
	engine.Config
	// Listen is the public address, such as "127.0.0.1:8000". Empty means that
	// only Handler serves.
	Listen string
	// AllowOrigins are the origins whose web pages may use the API, AllowHosts
	// further names of the server; see gateway.Config.
	AllowOrigins, AllowHosts []string
	// DrainTimeout is how long requests in flight may take to end after a stop; 0
	// cuts them at once.
	DrainTimeout time.Duration
	Version      string
}

// Parts of the configuration that the engine defines.
type (
	Model      = engine.Model
	Deployment = engine.Deployment
	Policy     = engine.Policy
)

// Defaults returns the configuration of `trctl serve` without flags.
func Defaults() Config {
	return Config{Config: engine.Defaults(), Listen: "127.0.0.1:8000", DrainTimeout: 10 * time.Second}
}

// Validate returns every fault of the configuration, each with its field path.
func (c *Config) Validate() error {
	errs := []error{c.Config.Validate()}
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("drain_timeout: is %s, must be at least 0", c.DrainTimeout))
	}
	if c.Listen != "" {
		_, port, err := net.SplitHostPort(c.Listen)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("listen: %q is no address such as 127.0.0.1:8000: %w", c.Listen, err))
		}
	}
	return errors.Join(errs...)
}
