//go:build unix

package main

import "syscall"

// replaceProcess runs a program in the place of this process. It returns only with an error.
func replaceProcess(path string, args, environ []string) error {
	return syscall.Exec(path, args, environ)
}
