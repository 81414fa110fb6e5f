// Package kernels holds the CUDA sources of the engine, compiles them for a device and a model's dimensions, and
// launches them.
//
// The sources in src are embedded: one kernel a .cu file, with one parameter struct, and headers of our own only, so a
// node needs the driver and NVRTC and nothing of the toolkit. Each file's head gives formula, shapes and the order of
// sums. params.go mirrors the structs of params.cuh; a test compiles the comparison.
//
// The executor is the caller. Set launches on the stream it is given, allocates nothing and never waits, so its calls
// may be captured in a graph: kernels read the counts of a step from the device (StepHead), never from parameters.
// Loaded with a Timeline, each block notes when it ran; the code of other builds does not change by that.
// References in float64 are in package ref; tests run on a GPU and, without one, on the emulator of package simt.
package kernels
