package handoff

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/protocol"
)

// Announce notes in a Hello which versions this build speaks.
func (f *Frame) Announce() { f.announce(protocol.Handoff()) }

func (f *Frame) announce(r protocol.Range) {
	f.ProtocolVersion, f.OldestVersion = uint16(r.Newest), uint16(r.Oldest)
	if r.Oldest == r.Newest {
		f.OldestVersion = 0
	}
}

// Versions are those that the sender of a Hello speaks.
func (f *Frame) Versions() protocol.Range {
	r := protocol.Range{Oldest: int(f.OldestVersion), Newest: int(f.ProtocolVersion)}
	if f.OldestVersion == 0 {
		r.Oldest = r.Newest
	}
	return r
}

// Agree is the version of a link whose other side has sent a Hello. Its error is
// ErrVersion, with both sides' versions.
func (f *Frame) Agree() (int, error) {
	v, err := protocol.Agree(protocol.NameHandoff, protocol.Handoff(), f.Versions())
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrVersion, err)
	}
	return v, nil
}
