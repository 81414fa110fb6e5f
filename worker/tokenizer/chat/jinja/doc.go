// Package jinja runs the chat templates of checkpoints: the part of the Jinja
// language that they use, with Python's values, as the reference implementation sets
// it up (sandboxed and immutable, blocks trimmed, break and continue, no HTML escape).
//
// Package chat is the caller. A Template may be shared by goroutines; a render has no
// access to anything but its variables, and is bounded while it runs: in steps, in
// depth, in the bytes it makes, in the bytes it writes, and in time. A template that
// asks for what is not known here is refused when it is parsed, with the line.
//
// A text knows which parts of it came from where (Class): concatenating, cutting and
// trimming keep that exactly; whatever else a template does to a text makes all of the
// result as little trusted as its least trusted part. So the caller can tell the
// template's control tokens from a message that looks like one.
//
// Inside the package a fault is a panic with a value of type fault, which Parse and
// Render turn into their error; nothing else is recovered here.
package jinja
