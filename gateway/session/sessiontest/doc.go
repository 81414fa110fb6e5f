// Package sessiontest has entries for tests: they answer with a script, and can
// be told to refuse, to wait, to die and to send what no entry may.
package sessiontest
