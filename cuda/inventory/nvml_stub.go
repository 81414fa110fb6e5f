//go:build !linux || !cgo

package inventory

import "fmt"

// noLibrary is the library of a build without cgo.
type noLibrary struct{}

var errNoCgo = fmt.Errorf("%w: built without cgo", ErrNoNVML)

func newLibrary() library { return noLibrary{} }

func (noLibrary) init() error                 { return errNoCgo }
func (noLibrary) shutdown() error             { return errNoCgo }
func (noLibrary) versions() (Versions, error) { return Versions{}, errNoCgo }
func (noLibrary) count() (int, error)         { return 0, errNoCgo }
func (noLibrary) gpu(int) (GPU, error)        { return GPU{}, errNoCgo }
func (noLibrary) watch(int) (watcher, error)  { return nil, errNoCgo }
