// Package driver owns the CUDA driver: devices, contexts, memory, streams, events, modules, launches and graphs.
//
// It is the only package that calls libcuda. The library is opened at run time with our own prototypes, so building
// needs no CUDA header and a binary starts on a machine without a GPU: Load then returns ErrNoDriver. A build without
// cgo has the same API and always returns ErrNoDriver.
//
// Callers are the kernels' launch code and the executor. Each call makes its context current on the calling thread
// first, so any goroutine may call; CUDA work is never sent to a locked thread. The step loop calls from its own
// goroutine and must not block in here: launches, copies and records return at once, while Synchronize, Wait, Read
// and Write block the thread.
//
// Ownership is explicit. There are no finalizers. Every object has Close, called once, after the work that uses it has
// ended. Driver.Live counts the open objects and bytes, for leak tests and the check at exit.
//
// The package never uses the default stream, host call-backs, or memory of Go in an asynchronous copy.
//
// Errors are *Error, with the operation and CUDA's code and name. A sticky code (Error.Sticky) means that the context is
// lost for all who share it. Everything made from it must be closed, which then calls the driver no more; Device.Reset
// after the last Context.Close makes the next Retain return a new context. The driver promises no more than that a new
// process works, so a caller checks the new context before it builds on it.
package driver
