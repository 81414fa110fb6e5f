// Package lint holds the house rules that a compiler does not check: sizes of
// files and functions, package documentation, names, goroutines, sleeping tests,
// who may import whom, and that docs/architecture.md names every package.
//
// Its tests read the module's source and run with all others. The rules
// themselves are pure functions over a parsed file, and each has a test with
// code that breaks it.
package lint
