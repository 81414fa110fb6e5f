package membership

import (
	"encoding/json"

	"github.com/hashicorp/memberlist"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// meta is what a node tells of itself, as JSON of at most memberlist.MetaMaxSize
// (512) bytes. Fields of later builds are passed over.
type meta struct {
	Role cluster.Role `json:"r"`
	Load cluster.Load `json:"l,omitzero"`
	// Going nodes are about to leave; the library itself does not tell a farewell from
	// a death.
	Going bool `json:"g,omitempty"`
}

func (m meta) encode() []byte {
	text, err := json.Marshal(m)
	if err != nil || len(text) > memberlist.MetaMaxSize {
		return nil // it says nothing then
	}
	return text
}

// decodeMeta reads what another node tells; what cannot be believed is left out.
func decodeMeta(text []byte) meta {
	var m meta
	if len(text) > memberlist.MetaMaxSize || json.Unmarshal(text, &m) != nil || !m.Role.Valid() {
		return meta{}
	}
	m.Load.Live, m.Load.Waiting, m.Load.KV = max(0, m.Load.Live), max(0, m.Load.Waiting), min(max(0, m.Load.KV), 1)
	return m
}
