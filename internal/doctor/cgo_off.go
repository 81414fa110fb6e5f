//go:build !linux || !cgo

package doctor

// cgo tells that this build cannot load the CUDA libraries.
const cgo = false
