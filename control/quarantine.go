package control

import (
	"strings"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// tellQuarantine logs, at the leader, that a command has put a GPU into quarantine or has
// lifted one, and who gave it.
func (n *Node) tellQuarantine(c *cluster.Command, index uint64) {
	switch c.Kind {
	case cluster.KindQuarantine:
		var body cluster.Quarantine
		if c.Decode(&body) != nil {
			return // it was applied, so it can be read
		}
		entry := n.State().Quarantines[body.GPU]
		if entry.Index != index {
			return // it was there already
		}
		q := &entry.Value
		n.log.Warn("GPU put into quarantine", "gpu", q.GPU, "node", q.Node, "reason", q.Why(), "by", givenBy(c), "release", cluster.ReleaseCommand(q.GPU))
	case cluster.KindReleaseGPU:
		var body cluster.Name
		if c.Decode(&body) != nil {
			return
		}
		n.log.Info("GPU released from quarantine", "gpu", body.Name, "by", givenBy(c))
	}
}

// givenBy is who gave a command, as the control node that took it has noted: "admin/alice".
func givenBy(c *cluster.Command) string {
	parts := strings.SplitN(c.Request, "/", 3)
	if len(parts) < 3 || !cluster.Role(parts[0]).Valid() {
		return "a control node"
	}
	return parts[0] + "/" + parts[1]
}
