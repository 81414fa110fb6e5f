// Command engine asks the embedded pair of models a question and prints the
// answer with the model that wrote each part.
//
//	go run ./examples/engine "What is 48 + 72 * 29?"
package main
