//go:build unix

package link

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock takes a lock that ends with the process; taken says that another has it.
func lock(path string) (unlock func(), taken bool, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		return nil, errors.Is(err, unix.EWOULDBLOCK), err
	}
	return func() { _ = f.Close() }, false, nil // nothing was written
}
