// Package sampling holds the sampling parameters of a request as they travel
// from the gateway to the entry sub-service and, once per collaborator, in the
// first hand-off.
//
// Whichever model writes a token obeys the same parameters. Draws are keyed by
// (seed, position, model, purpose), so no generator state travels.
package sampling
