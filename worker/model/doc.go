// Package model reads checkpoints in the Hugging Face layout: config.json,
// generation_config.json, and safetensors in one file or in shards.
//
// Executors call it at load. A Checkpoint maps its files and hands out raw
// tensors; converting, packing and uploading them is the executor's work. The
// package never writes, downloads or guesses: a model that would not compute
// exactly what its authors meant is refused with the file, the field, what was
// expected and what was found.
//
// A file that is cut short while it is mapped kills the process (SIGBUS), so an
// executor copies what it needs early and does not keep tensors.
//
// Three families are known: dense Qwen3, Qwen2 (with Qwen2.5, QwQ and the R1
// distills) and Llama 2 and 3. Another one is a case in ParseConfig, and what it
// has or lacks is a method of Config that Params and the executors ask.
package model
