//go:build unix

package cpuexec

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reserve returns n zero floats that take memory only once touched. They lie
// outside the Go heap, so that an idle pool does not move the collector's goal.
func reserve(n int) ([]float32, func() error, error) {
	b, err := unix.Mmap(-1, 0, n*4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: reserve %d bytes for pages: %w", ErrMemory, n*4, err)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), n), func() error { return unix.Munmap(b) }, nil
}
