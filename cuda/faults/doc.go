// Package faults watches the GPUs that a process uses, or may come to use, and tells of their faults: in the log, with what an operator should
// do, and in the metric trctl_gpu_faults_total. Package inventory is where the faults come from, and says what they mean.
//
// Some faults condemn a GPU: it must not be used until somebody has looked at it. Who asked for that is told
// (Config.Condemned); that the GPU is not used is the caller's part.
//
// A fault is logged once. While the same one comes to the same GPU again and again, a line a minute says how often.
//
// Nothing that goes wrong with the watch ends it, let alone the process: it is told once, and tried again where that may
// help. A build without NVML has nothing to watch, and says nothing.
package faults
