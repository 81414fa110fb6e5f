//go:build !linux || !cgo

package dynlib

// open always fails: this build cannot load shared libraries.
func open(name string) (uintptr, string) {
	return 0, name + ": built without cgo"
}

// Has reports false: there is no open library in this build.
func (l Library) Has(string) bool { return false }
