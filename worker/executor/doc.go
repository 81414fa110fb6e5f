// Package executor defines what the sub-service needs from a loaded model:
// run ragged steps over paged keys and values, and sample from them.
//
// Three implementations live below it and pass the same tests (executortest):
// cpuexec is the truth and the fallback, cudaexec runs on NVIDIA GPUs, and
// fakeexec is scripted and timed, for simulations.
//
// The scheduler owns page numbers; an executor owns the bytes of the pages.
package executor
