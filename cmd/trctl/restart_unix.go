//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// replaceProcess runs a program in the place of this process. It returns only with an error.
func replaceProcess(path string, args, environ []string) error {
	endWithProcess("/dev/nvidia")
	return syscall.Exec(path, args, environ)
}

// endWithProcess lets the open files whose paths begin so close when this process is replaced, however they were opened: as
// long as the new one had the driver's files of this one, a step that hangs would go on. Systems without /proc have to do
// without.
func endWithProcess(prefix string) {
	const dir = "/proc/self/fd"
	open, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, f := range open {
		path, err := os.Readlink(filepath.Join(dir, f.Name()))
		if fd, bad := strconv.Atoi(f.Name()); err == nil && bad == nil && strings.HasPrefix(path, prefix) {
			syscall.CloseOnExec(fd)
		}
	}
}
