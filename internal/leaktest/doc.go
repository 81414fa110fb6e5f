// Package leaktest fails the tests of a package whose goroutines outlive them.
package leaktest
