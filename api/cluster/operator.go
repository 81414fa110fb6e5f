package cluster

import "time"

// sinceOperators is the version that came with the list of operators' identities, with
// gateways that are forgotten and with keys that are deleted.
const sinceOperators = 2

const (
	// KindNoteOperator says that an operator has got a certificate: Operator.
	KindNoteOperator Kind = "note-operator"
	// KindForgetNode forgets a gateway that is lost: Name. It may come back under the
	// same name, which is what tells it from KindRemoveNode.
	KindForgetNode Kind = "forget-node"
	// KindDeleteKey deletes an API key that is revoked or has expired: Name.
	KindDeleteKey Kind = "delete-key"
)

// Operator is an identity of the role admin. Operators are no nodes; what is known of
// them is what control nodes have signed.
type Operator struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// Expires is when the identity ends: no certificate of it holds longer, or is renewed
	// after that. Zero for never.
	Expires time.Time `json:"expires,omitzero"`
	// Until is when its newest certificate ends. It is renewed when it is used.
	Until time.Time `json:"until"`
	// Token is the join token that admitted it; empty for an identity of before such
	// things were noted.
	Token string `json:"token,omitempty"`
}

// Since implements Later.
func (t Token) Since() int {
	if !t.IdentityExpires.IsZero() {
		return sinceOperators
	}
	return 1
}

// Since implements Later.
func (u UseToken) Since() int {
	if !u.Until.IsZero() {
		return sinceOperators
	}
	return 1
}
