//go:build !linux || !cgo || !nvml

package inventory

// noLibrary is the library of a build without NVML.
type noLibrary struct{}

func newLibrary() library { return noLibrary{} }

func (noLibrary) init() error                 { return ErrNotBuilt }
func (noLibrary) shutdown() error             { return ErrNotBuilt }
func (noLibrary) versions() (Versions, error) { return Versions{}, ErrNotBuilt }
func (noLibrary) count() (int, error)         { return 0, ErrNotBuilt }
func (noLibrary) gpu(int) (GPU, error)        { return GPU{}, ErrNotBuilt }
func (noLibrary) events() (eventSet, error)   { return nil, ErrNotBuilt }
