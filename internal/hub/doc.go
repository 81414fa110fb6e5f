// Package hub downloads checkpoints from a model hub that speaks the Hugging Face
// protocol, into that hub's cache layout or a plain directory.
//
// `trctl model pull` is the caller. Downloads go on where they were cut, in parallel
// ranges, and a file counts only once its digest is the hub's. Only what an engine
// reads is taken: configuration, tokenizer, template and safetensors.
//
// What a hub or a redirect says is not trusted: hosts are on a list, the address
// that a name resolves to is checked when it is dialled, at most three redirects are
// followed, credentials go to the first host alone, and file names stay inside the
// directory. Nothing is ever fetched but by a call of Pull.
package hub
