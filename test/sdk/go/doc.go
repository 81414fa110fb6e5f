// Package sdk runs the official Go client against a running server, whose
// address is in TRCTL_URL. It is a module of its own, so that the client's
// dependencies stay out of the product's.
package sdk
