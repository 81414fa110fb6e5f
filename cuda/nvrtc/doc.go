// Package nvrtc compiles CUDA C++ to cubins at run time and keeps them in a cache on disk.
//
// The library is opened at run time; without it Load returns ErrNoLibrary and nothing else is lost: a machine whose
// cache already holds the cubins needs no NVRTC, which is how an image built with `trctl kernels build` runs. No GPU is
// needed to compile.
//
// Callers are the kernels' loader and `trctl kernels build`. A Builder looks into the Cache, compiles what is missing
// in parallel, and stores it. Programs bring their own headers in memory; nothing of the CUDA toolkit is included.
//
// The package never reads the environment and never runs another program.
package nvrtc
