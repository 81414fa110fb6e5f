package state

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
)

// ObjectKind names a kind of object.
type ObjectKind string

const (
	KindCluster    ObjectKind = "cluster"
	KindNode       ObjectKind = "node"
	KindReplica    ObjectKind = "replica"
	KindDeployment ObjectKind = "deployment"
	KindTable      ObjectKind = "table"
	KindKey        ObjectKind = "key"
	KindToken      ObjectKind = "token"
	KindRemoved    ObjectKind = "removed"
	KindOperator   ObjectKind = "operator"
	// KindQuarantined are GPUs in quarantine, by UUID. KindGPU has no table: GPUs are nodes'.
	KindQuarantined ObjectKind = "quarantine"
	KindGPU         ObjectKind = "gpu"
)

// State is a cluster's replicated state. The zero value is that of a cluster that
// does not exist yet. It is immutable; its fields are exported for snapshots.
type State struct {
	// Index is that of the last command that was applied, Time the latest time that
	// a command has carried.
	Index uint64    `json:"index"`
	Time  time.Time `json:"time"`
	// History names the line of states that this one belongs to. Restoring a backup
	// begins another one: indexes of different histories have nothing in common.
	History string `json:"history,omitempty"`
	// Placement counts the changes of replicas, nodes and deployments that a plan
	// of placements depends on.
	Placement uint64 `json:"placement"`
	// Written is the newest version of all commands that were applied, if that is not 1:
	// a build that does not speak it cannot read the state.
	Written int `json:"written,omitempty"`

	Clusters    table[cluster.Cluster]    `json:"clusters"`
	Nodes       table[cluster.Node]       `json:"nodes"`
	Replicas    table[cluster.Replica]    `json:"replicas"`
	Deployments table[cluster.Deployment] `json:"deployments"`
	Tables      table[cluster.Table]      `json:"tables"`
	Keys        table[cluster.Key]        `json:"keys"`
	Tokens      table[cluster.Token]      `json:"tokens"`
	Removed     table[cluster.Removed]    `json:"removed"`
	Operators   table[cluster.Operator]   `json:"operators,omitempty"`
	Quarantines table[cluster.Quarantine] `json:"quarantines,omitempty"`

	// Gone are the deletions since Floor, oldest first. Changes before Floor are forgotten.
	Gone  []Object `json:"gone,omitempty"`
	Floor uint64   `json:"floor"`
	// Requests are the commands' request ids of the last while, oldest first.
	Requests []Request `json:"requests,omitempty"`
}

// Request remembers the result of a command that carried a request id.
type Request struct {
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	// Err is empty for success; Code is the error's.
	Err  string `json:"err,omitempty"`
	Code string `json:"code,omitempty"`
}

// Bounds of what is remembered.
const (
	maxGone     = 1024
	maxRequests = 4096
)

// clusterName is the name of the one object of KindCluster.
const clusterName = "cluster"

// kinds lists the tables in the order in which watchers get them: what others
// refer to comes first.
func (s *State) kinds() []struct {
	kind  ObjectKind
	table erased
} {
	return []struct {
		kind  ObjectKind
		table erased
	}{
		{KindCluster, s.Clusters}, {KindRemoved, s.Removed}, {KindNode, s.Nodes}, {KindReplica, s.Replicas},
		{KindDeployment, s.Deployments}, {KindTable, s.Tables}, {KindKey, s.Keys}, {KindToken, s.Tokens},
		{KindOperator, s.Operators}, {KindQuarantined, s.Quarantines},
	}
}

// Cluster returns the cluster's object, false before there is one.
func (s *State) Cluster() (cluster.Cluster, bool) { return s.Clusters.get(clusterName) }

// Node, Replica, Deployment, Table, Key and Token, and their like, return an object by its name.
func (s *State) Node(id string) (cluster.Node, bool)               { return s.Nodes.get(id) }
func (s *State) Replica(id string) (cluster.Replica, bool)         { return s.Replicas.get(id) }
func (s *State) Deployment(name string) (cluster.Deployment, bool) { return s.Deployments.get(name) }
func (s *State) Table(deployment string) (cluster.Table, bool)     { return s.Tables.get(deployment) }
func (s *State) Key(id string) (cluster.Key, bool)                 { return s.Keys.get(id) }
func (s *State) Token(id string) (cluster.Token, bool)             { return s.Tokens.get(id) }
func (s *State) Operator(name string) (cluster.Operator, bool)     { return s.Operators.get(name) }
func (s *State) Quarantine(gpu string) (cluster.Quarantine, bool)  { return s.Quarantines.get(gpu) }

// AllNodes and its like yield the objects of a kind in the order of their names.
func (s *State) AllNodes() iter.Seq2[string, cluster.Node]             { return s.Nodes.all() }
func (s *State) AllReplicas() iter.Seq2[string, cluster.Replica]       { return s.Replicas.all() }
func (s *State) AllDeployments() iter.Seq2[string, cluster.Deployment] { return s.Deployments.all() }
func (s *State) AllTables() iter.Seq2[string, cluster.Table]           { return s.Tables.all() }
func (s *State) AllKeys() iter.Seq2[string, cluster.Key]               { return s.Keys.all() }
func (s *State) AllTokens() iter.Seq2[string, cluster.Token]           { return s.Tokens.all() }
func (s *State) AllOperators() iter.Seq2[string, cluster.Operator]     { return s.Operators.all() }
func (s *State) AllQuarantines() iter.Seq2[string, cluster.Quarantine] { return s.Quarantines.all() }
func (s *State) AllRemoved() iter.Seq2[string, cluster.Removed]        { return s.Removed.all() }

// IsRemoved says that a node was removed: its certificates are refused.
func (s *State) IsRemoved(node string) bool { _, ok := s.Removed[node]; return ok }

// ReplicasOf lists the replicas of a model, in the order of their ids, which all
// nodes agree on.
func (s *State) ReplicasOf(model string) []cluster.Replica {
	var out []cluster.Replica
	for _, r := range s.AllReplicas() {
		if r.Model == model {
			out = append(out, r)
		}
	}
	return out
}

// Spoken are the versions of the cluster's protocol that all control nodes speak, some of
// them left out. It is not Valid if there are none.
func (s *State) Spoken(except ...string) protocol.Range {
	out := protocol.Range{Oldest: 1, Newest: protocol.Max}
	for id, n := range s.AllNodes() {
		if n.Role == cluster.Control && !slices.Contains(except, id) {
			out = out.And(n.Speaks())
		}
	}
	return out
}

// Serving says that a replica may be given requests.
func (s *State) Serving(r *cluster.Replica) bool {
	n, ok := s.Node(r.Node)
	if !ok || !n.Serves() || r.Draining || r.Phase != cluster.Ready {
		return false
	}
	_, barred := s.Barred(r)
	return !barred
}

// Visible says whether nodes of a role may see objects of a kind. Hashes of tokens, and
// who the operators are, stay with the control nodes and operators; workers have no business with keys.
func Visible(role cluster.Role, kind ObjectKind) bool {
	switch kind {
	case KindToken, KindOperator:
		return role == cluster.Control || role == cluster.Admin
	case KindKey:
		return role != cluster.Worker
	}
	return role.Valid()
}

// Sizes are those of the kinds of objects, in bytes of JSON.
func (s *State) Sizes() map[ObjectKind]int {
	out := map[ObjectKind]int{}
	for _, k := range s.kinds() {
		list, err := k.table.since(k.kind, 0)
		if err != nil {
			continue // nor can it be written
		}
		for _, o := range list {
			out[k.kind] += len(o.Value)
		}
	}
	return out
}

// ErrForgotten says that the changes since an index are no longer known.
var ErrForgotten = errors.New("state: these changes are forgotten; take a snapshot")

// Changes lists what a role may see of the changes after since, deletions first.
// since = 0 is everything. It returns ErrForgotten if too much has happened.
func (s *State) Changes(role cluster.Role, since uint64) ([]Object, error) {
	var out []Object
	if since > 0 {
		if since < s.Floor {
			return nil, ErrForgotten
		}
		for _, o := range s.Gone {
			if o.Index > since && Visible(role, o.Kind) {
				out = append(out, o)
			}
		}
	}
	for _, k := range s.kinds() {
		if !Visible(role, k.kind) {
			continue
		}
		list, err := k.table.since(k.kind, since)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return out, nil
}

// Follow returns the state with the changes that a State elsewhere has listed, and
// its index. A copy that follows has no history of its own.
func Follow(s *State, changes []Object, index uint64) (*State, error) {
	next := *s
	next.Index = index
	for _, o := range changes {
		i := slices.IndexFunc(next.kinds(), func(k struct {
			kind  ObjectKind
			table erased
		}) bool {
			return k.kind == o.Kind
		})
		if i < 0 {
			continue // a kind of a later build
		}
		t, err := next.kinds()[i].table.follow(o)
		if err != nil {
			return nil, err
		}
		next.set(t)
	}
	return &next, nil
}

// set replaces the table of t's type.
func (s *State) set(t erased) {
	switch t := t.(type) {
	case table[cluster.Cluster]:
		s.Clusters = t
	case table[cluster.Node]:
		s.Nodes = t
	case table[cluster.Replica]:
		s.Replicas = t
	case table[cluster.Deployment]:
		s.Deployments = t
	case table[cluster.Table]:
		s.Tables = t
	case table[cluster.Key]:
		s.Keys = t
	case table[cluster.Token]:
		s.Tokens = t
	case table[cluster.Removed]:
		s.Removed = t
	case table[cluster.Operator]:
		s.Operators = t
	case table[cluster.Quarantine]:
		s.Quarantines = t
	}
}

// gone notes a deletion, and forgets old ones.
func (s *State) gone(kind ObjectKind, name string) {
	s.Gone = append(slices.Clone(s.Gone), Object{Kind: kind, Name: name, Index: s.Index})
	if n := len(s.Gone) - maxGone; n > 0 {
		s.Floor = s.Gone[n-1].Index
		s.Gone = slices.Clone(s.Gone[n:])
	}
}

// refuse is an error about one object.
func refuse(kind ObjectKind, name string, err error) error {
	return fmt.Errorf("%s %q %w", kind, name, err)
}
