// Package cudaexec runs a model on one NVIDIA GPU.
//
// One step is ragged: prefill chunks, extends and decodes share it. Launch checks the batch, writes a descriptor into
// mapped host memory and enqueues the step's kernels on the executor's own stream:
//
//	prep → embed → L × (norm → qkv → [qkvpost →] attn → o → norm → gate, up → down) → norm → head → features → sample →
//	score → publish
//
// Kernels read all counts from the descriptor on the device and all buffers stay in place. So a step is two CUDA graphs,
// captured at the start: the layers for one of thirteen numbers of tokens up to 256, the head for one of seven numbers of
// sampled positions up to 64. Steps between two sizes take the larger; larger steps are launched kernel by kernel. On
// compute capability 9.0 a kernel may begin while the one before it ends.
//
// The last kernel writes the results and the step's number into mapped host memory. Wait watches that number for about
// as long as the last steps of this size took, which costs a core while steps run; on machines with few of them it sleeps
// until shortly before a long step is expected to end. There is no stream synchronisation on the way.
// With Config.Depth of 2, descriptor and results are rings of two entries, and a row may feed the token that the step
// before it samples.
//
// Matrix products: gemv up to 2 tokens, slim up to 16 in small matrices, cuBLASLt above; our own panel (on Hopper) or tile
// where the library is absent or refuses; gate and up end in the gate where the kernel is ours. With Config.Reproducible
// all of them are band, slim, and panel or tile, which give the same bits, and a token's bits then depend on its own
// sequence alone: not on the batch, the chunking, or what else runs on the GPU.
//
// The scheduler owns page numbers, the executor the bytes of the pages, [L][N, 2, Hk, P, D] bfloat16. Page quarantine is
// the scheduler's (executor.Executor.Close). Two executors may share a Device: one context, a stream each.
//
// With Config.Timeline the executor knows which operation each launch belongs to, also those in graphs, and StartTimeline and Timeline
// tell where the time of the steps between them went on the device (package timeline).
//
// A failed launch or a device fault ends the executor: this and all later calls return executor.ErrFailed, with the
// operation. After a sticky fault (driver.IsSticky) the whole Device is lost; once every executor on it is shut down and it is
// closed, OpenDevice makes a new one, or says with ErrContext that only a new process can.
package cudaexec
