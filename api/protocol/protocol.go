package protocol

import (
	"errors"
	"fmt"
	"strconv"
)

// The versions that this build speaks. What came with which:
//
//	cluster   2  what requests may choose of a model (Facts), special maps
//	cluster   3  which deployments a replica leaves out (Facts)
//	cluster   4  GPUs in quarantine
//	generate  2  the first that is told from another
const (
	ClusterOldest, ClusterNewest   = 1, 4 + raised
	HandoffOldest, HandoffNewest   = 1, 1 + raised
	GenerateOldest, GenerateNewest = 2, 2 + raised
)

// Max bounds versions.
const Max = 1<<16 - 1

// Names of the protocols in errors.
const (
	NameCluster  = "cluster protocol"
	NameHandoff  = "hand-off protocol"
	NameGenerate = "generate protocol"
)

// Cluster is spoken between control nodes and everybody: commands, calls, watches, joins.
func Cluster() Range { return Range{ClusterOldest, ClusterNewest} }

// Handoff is spoken between workers.
func Handoff() Range { return Range{HandoffOldest, HandoffNewest} }

// Generate is spoken by gateways to workers.
func Generate() Range { return Range{GenerateOldest, GenerateNewest} }

// Range is the versions from Oldest to Newest, both included.
type Range struct {
	Oldest int `json:"oldest"`
	Newest int `json:"newest"`
}

// Valid says that r has a version, and none that is out of bounds.
func (r Range) Valid() bool { return 1 <= r.Oldest && r.Oldest <= r.Newest && r.Newest <= Max }

// Has says that v is in r.
func (r Range) Has(v int) bool { return r.Oldest <= v && v <= r.Newest }

// And is what both ranges have; it is not Valid if that is nothing.
func (r Range) And(o Range) Range { return Range{max(r.Oldest, o.Oldest), min(r.Newest, o.Newest)} }

// String is "1", or "1 to 3".
func (r Range) String() string {
	if r.Oldest == r.Newest {
		return strconv.Itoa(r.Newest)
	}
	return fmt.Sprintf("%d to %d", r.Oldest, r.Newest)
}

// Agree is the newest version that both sides speak. The error is a *Mismatch.
func Agree(name string, ours, theirs Range) (int, error) {
	if both := ours.And(theirs); ours.Valid() && theirs.Valid() && both.Valid() {
		return both.Newest, nil
	}
	return 0, &Mismatch{name, ours, theirs}
}

// ErrMismatch says that two sides have no version in common. The error is a *Mismatch.
var ErrMismatch = errors.New("no version of the protocol is spoken by both sides")

// Mismatch names the versions of two sides that have none in common.
type Mismatch struct {
	Protocol     string
	Ours, Theirs Range
}

// Error gives both ranges, and says what to do.
func (m *Mismatch) Error() string {
	text := fmt.Sprintf("%s: this side speaks %s, the other %s: ", m.Protocol, m.Ours, m.Theirs)
	switch {
	case !m.Theirs.Valid():
		return text + "that is no range of versions"
	case m.Theirs.Newest < m.Ours.Oldest:
		return text + fmt.Sprintf("the other is too old; upgrade it to a build that speaks %d", m.Ours.Oldest)
	default:
		return text + fmt.Sprintf("the other is too new; upgrade this side first, or give the other a build that speaks %d", m.Ours.Newest)
	}
}

// Is reports that the error is an ErrMismatch.
func (m *Mismatch) Is(target error) bool { return target == ErrMismatch }
