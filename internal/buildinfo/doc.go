// Package buildinfo says which build of TokenRouter is running: version,
// commit, toolchain and whether the GPU part is compiled in.
//
// It reads what the Go linker stored and owns nothing. The binary's version
// command, the gateway's responses and the logs use it.
package buildinfo
