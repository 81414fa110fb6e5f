package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tokenrouter/tokenrouter/api/protocol"
)

// Kind says what a command does. Its body is the type named beside it.
type Kind string

const (
	KindInit             Kind = "init"              // Cluster
	KindPutNode          Kind = "put-node"          // Start: a join or a start
	KindNodeState        Kind = "node-state"        // NodeState
	KindRemoveNode       Kind = "remove-node"       // RemoveNode
	KindReport           Kind = "report"            // Report
	KindPlace            Kind = "place"             // Place
	KindPutDeployment    Kind = "put-deployment"    // Deployment
	KindDeleteDeployment Kind = "delete-deployment" // Name
	KindPutTable         Kind = "put-table"         // Table
	KindPutKey           Kind = "put-key"           // Key
	KindRevokeKey        Kind = "revoke-key"        // Name
	KindPutToken         Kind = "put-token"         // Token
	KindUseToken         Kind = "use-token"         // UseToken
	KindRevokeToken      Kind = "revoke-token"      // Name
	KindSetCAs           Kind = "set-cas"           // CAs
)

// MaxCommand bounds an encoded command, in bytes.
const MaxCommand = 1 << 20

// MaxID bounds the names of objects, in bytes.
const MaxID = 128

// Command is a change of the state. Applying it must give the same result on every
// control node, so it carries the time.
type Command struct {
	// V is the oldest version of the protocol that can read the command.
	V    int  `json:"v"`
	Kind Kind `json:"kind"`
	// Request is chosen by whoever asks, to make a repetition harmless: a command
	// with the Request of an earlier one within RememberFor is not applied again,
	// and has the earlier one's result. Empty means no such protection.
	Request string `json:"request,omitempty"`
	// Time is the proposer's clock. The state's own time never goes back.
	Time time.Time       `json:"time"`
	Body json.RawMessage `json:"body"`
}

// RememberFor is how long Command.Request is remembered.
const RememberFor = 10 * time.Minute

// Name is the body of commands about one object.
type Name struct {
	Name string `json:"name"`
}

// RemoveNode takes a node out for good. With the role admin it is an operator's
// certificate that is refused from then on; the state has no object for those, so the
// name may be any that no node has.
type RemoveNode struct {
	Name string `json:"name"`
	Role Role   `json:"role,omitempty"`
}

// NodeState sets what the leader or an operator knows of a node. Nil leaves as is.
type NodeState struct {
	ID       string `json:"id"`
	Draining *bool  `json:"draining,omitempty"`
	Lost     *bool  `json:"lost,omitempty"`
}

// Start is a node that has joined or started. What ran in its last process runs no more,
// but for Replicas, which this process has already: a worker that began without control
// nodes announces itself late, and gateways must not let go of it meanwhile.
type Start struct {
	Node
	Replicas []ReplicaReport `json:"replicas,omitempty"`
}

// Report is a worker's word about its replicas. Those of another generation, or of
// another node, are passed over.
type Report struct {
	Node     string          `json:"node"`
	Replicas []ReplicaReport `json:"replicas"`
}

// ReplicaReport is about one replica.
type ReplicaReport struct {
	ID         string `json:"id"`
	Generation uint64 `json:"generation"`
	Phase      Phase  `json:"phase"`
	Reason     string `json:"reason,omitempty"`
	Facts      Facts  `json:"facts,omitzero"`
}

// Place is the leader's plan. It is applied as a whole, and only if the state has
// still the placement version that the plan was made from.
type Place struct {
	// From is State.Placement when the plan was made.
	From uint64 `json:"from"`
	// Put are replicas to add or change; their Generation is set by Apply. Delete
	// are ids. Deployments are default ones.
	Put         []Replica    `json:"put,omitempty"`
	Drain       []string     `json:"drain,omitempty"`
	Delete      []string     `json:"delete,omitempty"`
	Deployments []Deployment `json:"deployments,omitempty"`
}

// UseToken takes one use of a join token for a node that is not there yet. The
// token must be for the role, if one is given.
type UseToken struct {
	ID   string `json:"id"`
	Node string `json:"node"`
	Role Role   `json:"role,omitempty"`
	// Until is when the certificate of an operator ends that joins; with it the operator
	// is noted.
	Until time.Time `json:"until,omitzero"`
}

// CAs replaces the trusted CAs, PEM.
type CAs struct {
	CAs []string `json:"cas"`
}

// ErrCommand says that a command cannot be read, or that its fields are refused.
var ErrCommand = errors.New("cluster: bad command")

// NewCommand encodes a body. Its version is the oldest one that can read it, so that it
// is taken as long as possible while builds are upgraded.
func NewCommand(kind Kind, request string, now time.Time, body any) (Command, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return Command{}, fmt.Errorf("%w: %s: %w", ErrCommand, kind, err)
	}
	return Command{V: since(kind, body), Kind: kind, Request: request, Time: now.UTC().Round(0), Body: b}, nil
}

// Encode is the form of a command in the log.
func (c *Command) Encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCommand, err)
	}
	if len(b) > MaxCommand {
		return nil, fmt.Errorf("%w: %s has %d bytes, at most %d are allowed", ErrCommand, c.Kind, len(b), MaxCommand)
	}
	return b, nil
}

// DecodeCommand reads what Encode wrote. Unknown fields and versions are refused.
func DecodeCommand(b []byte) (Command, error) {
	var c Command
	if len(b) > MaxCommand {
		return c, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrCommand, len(b), MaxCommand)
	}
	if err := strict(b, &c); err != nil {
		// A later version may have more fields; that is then the reason.
		var head struct{ V int }
		if json.Unmarshal(b, &head) != nil || head.V <= Protocol {
			return c, err
		}
		c.V = head.V
	}
	if c.V < MinProtocol || c.V > Protocol {
		return c, fmt.Errorf("%w: %s has version %d, and this build speaks %s; use a build that speaks it", ErrCommand, c.Kind, c.V, protocol.Cluster())
	}
	return c, nil
}

// Decode reads the body into a pointer to the type that belongs to the kind. A version
// older than what the body says is refused: builds of that version could not read it.
func (c *Command) Decode(body any) error {
	if err := strict(c.Body, body); err != nil {
		return fmt.Errorf("%s: %w", c.Kind, err)
	}
	if v := since(c.Kind, body); c.V < v {
		return fmt.Errorf("%w: %s has version %d, and what it says came with version %d", ErrCommand, c.Kind, c.V, v)
	}
	return nil
}

func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", ErrCommand, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: text after the end", ErrCommand)
	}
	return nil
}
