//go:build !unix

package main

import "errors"

// replaceProcess is not possible on this system; a supervisor starts trctl again.
func replaceProcess(string, []string, []string) error {
	return errors.New("a process cannot be replaced on this system")
}
