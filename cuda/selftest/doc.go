// Package selftest checks a machine's GPU path from Go, end to end, in less than a minute.
//
// Run loads the driver, compiles small kernels with NVRTC, checks their results, replays a graph, maps memory, measures
// latencies and bandwidths, and compares cuBLASLt with a reference on the CPU. It prints one line as each part ends.
// The tests on machines with a GPU call it (test/gpu/run.sh selftest).
//
// Nothing waits without a limit: kernels that wait for the host give up by the device's clock, and the host polls with a
// deadline. A part that fails does not stop the others, unless the context is lost.
package selftest
