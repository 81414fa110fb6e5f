package main

import (
	"path/filepath"
	"syscall"
	"testing"
)

func TestEndWithProcess(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) int {
		t.Helper()
		fd, err := syscall.Open(filepath.Join(dir, name), syscall.O_CREAT|syscall.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Close(fd) })
		return fd
	}
	files := map[string]int{"nvidia0": open("nvidia0"), "nvidiactl": open("nvidiactl"), "null": open("null")}
	endWithProcess(filepath.Join(dir, "nvidia"))
	for name, fd := range files {
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		if closes := flags&syscall.FD_CLOEXEC != 0; closes != (name != "null") {
			t.Errorf("%s closes: %t", name, closes)
		}
	}
}
