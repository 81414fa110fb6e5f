//go:build !nextprotocol

package state

import "github.com/tokenrouter/tokenrouter/api/cluster"

// applyNext applies the kinds that only the next version has: none.
func (*State) applyNext(*cluster.Command) (known bool, err error) { return false, nil }
