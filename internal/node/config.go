package node

import (
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
	// DrainTimeout is how long requests in flight may take to end after a stop.
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
