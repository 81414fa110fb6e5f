package state

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Bounds of objects.
const (
	maxModels  = 16
	maxLive    = 4096 // entries of a threshold table
	maxReason  = 1024
	maxGPUs    = 64
	hashLength = 32
	// maxSettings bounds the parameters of a policy, in bytes.
	maxSettings = 64 << 10
)

// checkID allows what can stand in a certificate's URI, a file name and a label.
func checkID(kind ObjectKind, id string) error {
	if id == "" || len(id) > cluster.MaxID {
		return fmt.Errorf("%s %w: its name must have 1 to %d bytes", kind, ErrInvalid, cluster.MaxID)
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '-' || c == '.' || c == '_'):
		default:
			return fmt.Errorf("%s %q %w: names have letters, digits, and - . _ after the first", kind, id, ErrInvalid)
		}
	}
	return nil
}

func checkAddress(node, what, address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("node %q: %s %q %w: it must be host:port", node, what, address, ErrInvalid)
	}
	return nil
}

func checkNode(n *cluster.Node) error {
	if err := checkID(KindNode, n.ID); err != nil {
		return err
	}
	if !n.Role.Valid() || n.Role == cluster.Admin {
		return fmt.Errorf("node %q: role %q %w", n.ID, n.Role, ErrInvalid)
	}
	if err := checkAddress(n.ID, "addr", n.Addr); err != nil {
		return err
	}
	// What this build speaks must not matter here: all control nodes apply alike.
	if r := n.Speaks(); !r.Valid() {
		return fmt.Errorf("node %q: protocol %s %w: it is no range of versions", n.ID, r, ErrInvalid)
	}
	if len(n.GPUs) > maxGPUs || len(n.Pins) > maxGPUs {
		return fmt.Errorf("node %q %w: more than %d GPUs or models", n.ID, ErrInvalid, maxGPUs)
	}
	for i, p := range n.Pins {
		if p.Model == "" || p.TP < 1 {
			return fmt.Errorf("node %q: pins[%d] %w: it needs a model and a tp of at least 1", n.ID, i, ErrInvalid)
		}
	}
	return nil
}

func checkReplica(r *cluster.Replica) error {
	if err := checkID(KindReplica, r.ID); err != nil {
		return err
	}
	if r.Model == "" || r.TP < 1 {
		return fmt.Errorf("replica %q %w: it needs a model and a tp of at least 1", r.ID, ErrInvalid)
	}
	return nil
}

func checkReport(r *cluster.ReplicaReport) error {
	if !slices.Contains(cluster.Phases(), r.Phase) {
		return fmt.Errorf("replica %q: phase %q %w", r.ID, r.Phase, ErrInvalid)
	}
	if len(r.Reason) > maxReason {
		return fmt.Errorf("replica %q: reason %w: it has more than %d bytes", r.ID, ErrInvalid, maxReason)
	}
	if err := r.Facts.Check(); err != nil {
		return fmt.Errorf("replica %q %w: %w", r.ID, ErrInvalid, err)
	}
	return nil
}

// CheckDeployment returns what KindPutDeployment would refuse a deployment for.
func CheckDeployment(d *cluster.Deployment) error {
	if err := checkID(KindDeployment, d.Name); err != nil {
		return err
	}
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("deployment %q: %s %w: %s", d.Name, field, ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch n := len(d.Models); {
	case n == 0 || n > maxModels:
		return bad("models", "%d of them, 1 to %d are allowed", n, maxModels)
	case slices.Contains(d.Models, ""):
		return bad("models", "a name is empty")
	case len(slices.Compact(slices.Sorted(slices.Values(d.Models)))) != n:
		return bad("models", "a model is named twice")
	case d.Policy == "":
		return bad("policy", "it is not set")
	case d.Replicas != nil && len(d.Replicas) != n:
		return bad("replicas", "%d numbers for %d models", len(d.Replicas), n)
	case d.Thresholds != nil && len(d.Thresholds) != n:
		return bad("thresholds", "%d numbers for %d models", len(d.Thresholds), n)
	case slices.ContainsFunc(d.Replicas, func(r int) bool { return r < 0 || r > 1024 }):
		return bad("replicas", "a number is below 0 or above 1024")
	case slices.ContainsFunc(d.Thresholds, func(b int) bool { return b < 1 || b > maxLive }):
		return bad("thresholds", "a threshold is below 1 or above %d", maxLive)
	case d.LongestWait < 0:
		return bad("longest_wait", "it is negative")
	case d.FallbackWait < 0:
		return bad("fallback_wait", "it is negative")
	case d.MaxInFlight < 0:
		return bad("max_in_flight", "it is negative")
	case len(d.Settings)+len(d.Policy) > maxSettings:
		return bad("settings", "they have more than %d bytes", maxSettings)
	case d.Fallback != "" && !slices.Contains(cluster.Fallbacks(), d.Fallback):
		return bad("fallback", "%q is not one of %v", d.Fallback, cluster.Fallbacks())
	}
	if _, err := d.PolicySettings(); err != nil {
		return bad("settings", "%s", strings.TrimPrefix(err.Error(), cluster.ErrCommand.Error()+": "))
	}
	return nil
}

func checkTable(t *cluster.Table, models int) error {
	if len(t.B) == 0 || len(t.B) > maxLive {
		return fmt.Errorf("table %q %w: %d rows, 1 to %d are allowed", t.Deployment, ErrInvalid, len(t.B), maxLive)
	}
	for i, row := range t.B {
		sum := 0
		for _, b := range row {
			if b < 1 {
				return fmt.Errorf("table %q: b[%d] %w: a threshold is below 1", t.Deployment, i, ErrInvalid)
			}
			sum += b - 1
		}
		if len(row) != models || sum >= i+1 {
			return fmt.Errorf("table %q: b[%d] = %v %w: %d thresholds are needed whose excess over 1 sums to less than %d",
				t.Deployment, i, row, ErrInvalid, models, i+1)
		}
	}
	return nil
}

func checkKey(k *cluster.Key) error {
	if err := checkID(KindKey, k.ID); err != nil {
		return err
	}
	if len(k.MAC) != hashLength {
		return fmt.Errorf("key %q: mac %w: it must have %d bytes", k.ID, ErrInvalid, hashLength)
	}
	if k.RequestsPerMinute < 0 || k.TokensPerMinute < 0 || k.Concurrency < 0 {
		return fmt.Errorf("key %q: a limit is negative: %w", k.ID, ErrInvalid)
	}
	return nil
}

func checkToken(t *cluster.Token) error {
	if err := checkID(KindToken, t.ID); err != nil {
		return err
	}
	if !t.Role.Valid() {
		return fmt.Errorf("token %q: role %q %w", t.ID, t.Role, ErrInvalid)
	}
	if len(t.Hash) != hashLength || t.Uses < 1 {
		return fmt.Errorf("token %q %w: it needs a hash of %d bytes and at least one use", t.ID, ErrInvalid, hashLength)
	}
	if !t.IdentityExpires.IsZero() && t.Role != cluster.Admin {
		return fmt.Errorf("token %q: identity_expires %w: it is for the role admin", t.ID, ErrInvalid)
	}
	return nil
}

// Check returns the violations of what holds in every state:
//
//   - an object's index is at most the state's;
//   - a replica's node is there, is a worker, and was not removed;
//   - a removed node is no node;
//   - a quarantine is of the GPU that it is listed by, and within its bounds;
//   - a threshold table belongs to a deployment and is feasible for it;
//   - deletions are remembered in order, all after Floor.
func (s *State) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, k := range s.kinds() {
		late, err := k.table.since(k.kind, s.Index)
		if err != nil || len(late) > 0 {
			bad("%s: %d objects are newer than the state, err %v", k.kind, len(late), err)
		}
	}
	for id, r := range s.AllReplicas() {
		if n, ok := s.Node(r.Node); !ok || n.Role != cluster.Worker {
			bad("replica %s is on %s, which is no worker", id, r.Node)
		}
	}
	for id := range s.Removed {
		if _, ok := s.Node(id); ok {
			bad("node %s was removed and is there", id)
		}
	}
	for gpu, q := range s.AllQuarantines() {
		if err := checkQuarantine(&q); err != nil || q.GPU != gpu {
			bad("quarantine of GPU %s is of %s, err %v", gpu, q.GPU, err)
		}
	}
	for name, t := range s.AllTables() {
		d, ok := s.Deployment(name)
		if !ok {
			bad("table %s has no deployment", name)
			continue
		}
		if err := checkTable(&t, len(d.Models)); err != nil {
			errs = append(errs, err)
		}
	}
	last := s.Floor
	for _, o := range s.Gone {
		if o.Index < last {
			bad("deletion of %s %s at %d comes after one at %d", o.Kind, o.Name, o.Index, last)
		}
		last = o.Index
	}
	return errors.Join(errs...)
}
