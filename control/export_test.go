package control

// CloseStore closes the log on disk under a node that runs, so that every write of it
// fails from now on.
func CloseStore(n *Node) error { return n.store.BoltStore.Close() }
