// Package dummy makes weights of any shape from a seed, so that a model of any size runs without a download. The numbers
// are the same here, in the CUDA kernel hashfill, and in reference.py; they are part of the tests' references and do
// not change.
//
// Element i of a tensor is, all in unsigned 64-bit and IEEE float32 arithmetic,
//
//	key   = mix(fnv1a64(name) + mix(seed + golden))
//	x     = mix(key + (i + 1) * golden)            golden = 0x9E3779B97F4A7C15
//	u     = float32(int16(x >> 48)) / 32768        in [-1, 1)
//	value = bfloat16(offset + scale * u)           product, sum and conversion each rounded to nearest even
//
// where mix is the finaliser of splitmix64 and name is the tensor's name in the checkpoint. Offset and scale follow
// from name and shape: a norm's weight is 1 + 0.25 u; other vectors 0.02 u; the embedding and the output head
// 4 sqrt(3/K) u, and other matrices sqrt(3/K) u, with K the length of a row, so that activations keep their size and
// logits have a standard deviation of about 4.
//
// A dummy model has no tokenizer. The package depends on the standard library alone.
package dummy
