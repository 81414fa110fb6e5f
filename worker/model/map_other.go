//go:build !unix

package model

import "os"

// mapFile reads a file where the system has no mapping that we use.
func mapFile(name string) ([]byte, func() error, error) {
	b, err := os.ReadFile(name)
	return b, nil, err
}
