// Package openai holds the public wire types: requests as clients of the OpenAI
// API send them, responses, stream chunks and errors as they expect them.
//
// Parsing is strict. A field with the wrong type, a value out of range, or a
// known parameter that would have an effect but is not supported is an *Error
// that names the parameter. Null and neutral values equal absence. Unknown
// fields are ignored and listed, so that the response can say so.
//
// Chunks of a stream are written by an appender that allocates nothing.
// The package does no I/O and knows neither deployments nor models.
package openai
