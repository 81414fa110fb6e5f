// Command policy compiles a routing policy of its own into a program, asks the
// embedded pair of models a question under it, and prints who wrote what.
//
//	go run ./examples/policy "What is 48 + 72 * 29?"
//
// A policy is one question about each token of the small model; docs/policies.md
// says what else there is, up to the full interface.
package main
