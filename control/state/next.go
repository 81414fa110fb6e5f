//go:build nextprotocol

package state

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// maxNote bounds an annotation, in bytes.
const maxNote = 1 << 10

// applyNext applies the kinds that only the next version has.
func (s *State) applyNext(c *cluster.Command) (known bool, err error) {
	if c.Kind != cluster.KindAnnotate {
		return false, nil
	}
	return true, decoded(c, s.annotate)
}

func (s *State) annotate(a *cluster.Annotation) error {
	if len(a.Note) > maxNote {
		return fmt.Errorf("note %w: it has more than %d bytes", ErrInvalid, maxNote)
	}
	own, _ := s.Cluster()
	own.Note = a.Note
	s.Clusters = s.Clusters.with(clusterName, own, s.Index)
	return nil
}
