// Package cudaexec runs a model on one NVIDIA GPU.
//
// One step is ragged: prefill chunks, extends and decodes share it. Launch checks the batch, writes a descriptor into
// mapped host memory and enqueues the step's kernels on the executor's own stream:
//
//	prep → embed → L × (norm → qkv → qkvpost → attn → o → norm → gate, up → silu → down) → norm → head → features →
//	sample → score → publish
//
// The last kernel writes the results and the step's number into mapped host memory. Wait watches that number for a short
// while and then sleeps on an event; there is no stream synchronisation on the way. Kernels read all counts from the
// descriptor on the device and all buffers stay in place, so a step can become a CUDA graph for each size.
//
// Matrix products: gemv up to 8 tokens, cuBLASLt above, our own gemm where the library is absent or refuses. With
// Config.Reproducible all of them are gemm, and a token's bits then depend on its own sequence alone: not on the
// batch, the chunking, or what else runs on the GPU.
//
// The scheduler owns page numbers, the executor the bytes of the pages, [L][N, 2, Hk, P, D] bfloat16. Page quarantine is
// the scheduler's (executor.Executor.Close). Two executors may share a Device: one context, a stream each.
//
// A failed launch or a device fault ends the executor: this and all later calls return executor.ErrFailed, with the
// operation. After a sticky fault (driver.IsSticky) the whole Device is lost.
package cudaexec
