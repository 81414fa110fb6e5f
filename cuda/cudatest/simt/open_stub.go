//go:build !linux || !amd64 || !cgo

package simt

import "github.com/tokenrouter/tokenrouter/cuda/driver"

// Open returns ErrUnavailable in this build.
func Open() (*driver.Driver, error) { return nil, ErrUnavailable }

// Backwards does nothing in this build.
func Backwards(bool) {}
