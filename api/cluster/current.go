//go:build !nextprotocol

package cluster

// nextCluster are fields that only the next version has: none.
type nextCluster struct{}

// next is the version and an empty body of a kind that only the next version has.
func (Kind) next() (since int, body any) { return 0, nil }
