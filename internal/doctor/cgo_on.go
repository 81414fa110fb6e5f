//go:build linux && cgo

package doctor

// cgo tells that this build can load the CUDA libraries.
const cgo = true
