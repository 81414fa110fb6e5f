// Package inventory says which GPUs a machine has and how they are, through NVML.
//
// It needs no CUDA context and takes no device memory, so `trctl doctor`, the worker's report of facts and the metrics
// use it also while a model is starting. Watch delivers hardware faults (Xid events, uncorrectable memory errors); the
// worker stops a replica whose GPU reports a fatal one.
//
// Without the library or the kernel module Open returns ErrNoNVML. NVML is in a build only if that was made by
// BuildCommand, with cgo and the build tag nvml; in any other Open returns ErrNotBuilt, and the devices themselves are
// known through package driver alone.
//
// NVML counts devices in bus order and ignores CUDA_VISIBLE_DEVICES, so indices here and ordinals of package driver may
// differ: match by UUID.
package inventory
