//go:build !nextprotocol

package control

import "github.com/tokenrouter/tokenrouter/api/cluster"

// nextOperatorKinds are those of operators that only the next version has: none.
func nextOperatorKinds() []cluster.Kind { return nil }
