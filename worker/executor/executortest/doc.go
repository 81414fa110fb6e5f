// Package executortest is the suite that every executor.Executor passes.
//
// An implementation's test calls Run with a constructor. The suite knows nothing
// of the model behind it: it feeds made-up ids, owns its pages, and compares an
// executor with itself and with slow references computed from the raw logits.
// Tests that need a feature which Info does not list are skipped.
package executortest
