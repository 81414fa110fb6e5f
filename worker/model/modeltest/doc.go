// Package modeltest makes checkpoints for tests out of others.
package modeltest
