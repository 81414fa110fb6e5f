// Package inventory says which GPUs a machine has and how they are, through NVML.
//
// It needs no CUDA context and takes no device memory, so `trctl doctor` uses it whatever else the GPUs do. Events are the
// faults that the driver reports (Xid, uncorrectable memory errors), for package faults; Event.Meaning says what they mean
// and what to do.
//
// Without the library or the kernel module Open returns ErrNoNVML. NVML is in a build only if that was made by
// BuildCommand, with cgo and the build tag nvml; in any other Open returns ErrNotBuilt, and the devices themselves are
// known through package driver alone.
//
// NVML counts devices in bus order and ignores CUDA_VISIBLE_DEVICES, so indices here and ordinals of package driver may
// differ: match by UUID.
package inventory
