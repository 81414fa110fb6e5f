package control

// CloseStore closes the log on disk under a node that runs, so that every write of it
// fails from now on.
func CloseStore(n *Node) error { return n.store.BoltStore.Close() }

// Members are the addresses in the consensus, by node, as a node that runs has them.
func Members(n *Node) map[string]string {
	out := map[string]string{}
	for _, s := range n.servers(n.raft.Load()) {
		out[string(s.ID)] = string(s.Address)
	}
	return out
}
