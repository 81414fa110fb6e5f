// Package tensor describes arrays in device memory: where they are, their shape and their type.
//
// The launch code of the kernels takes Views and checks them before a launch; the executor lays buffers out in an
// Arena, one allocation with checked, aligned parts. The package touches no device and owns no memory: it computes with
// addresses. Standard library only.
package tensor
