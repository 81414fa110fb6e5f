// Package ref computes what the kernels compute, plainly and in float64, for their tests. One function a kernel, dense
// inputs, no pages, no order of sums to speak of. It depends on the standard library alone.
package ref
