//go:build !nextprotocol

package cluster

// NextFields are the cluster's fields that only the next version has: none.
type NextFields struct{}

// next is the version and an empty body of a kind that only the next version has.
func (Kind) next() (since int, body any) { return 0, nil }
