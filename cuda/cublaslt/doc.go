// Package cublaslt multiplies bf16 activations by bf16 weights with cuBLASLt: out[T, N] = x[T, K] · w[N, K]ᵀ, all
// row-major, accumulated in fp32.
//
// It is the first stage's GEMM, the reference for our own kernels, and their rival in tuning. The library is optional:
// it is opened at run time, and without it Load returns ErrNoLibrary.
//
// A Handle belongs to one context. It asks the library once per shape which algorithm to use and keeps the answer, so
// callers round T up to a few sizes. Matmul only enqueues work on the given stream and may be captured once its shape
// is known (Prepare). The caller brings the workspace, one for each stream that runs at the same time.
package cublaslt
