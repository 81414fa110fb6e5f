package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Bounds of Facts. Together they keep a report within MaxCommand.
const (
	// MaxListed bounds Policies and Routers, MaxListedName their names, in bytes.
	MaxListed     = 64
	MaxListedName = 512
	// MaxAdded bounds Words.Added, MaxAddedBytes their texts together, in bytes.
	MaxAdded      = 1024
	MaxAddedBytes = 64 << 10
	// MaxLeftOut bounds LeftOut.
	MaxLeftOut = 256
)

// Words tell a vocabulary apart from others in what a special map may bridge.
type Words struct {
	// Plain is a fingerprint of all ids and texts but those of added tokens. Size is the
	// largest id plus one.
	Plain string `json:"plain"`
	Size  int    `json:"size"`
	// Added are the added tokens, such as <think>, in order of id.
	Added []AddedToken `json:"added"`
}

// AddedToken is a token that a tokenizer finds before it splits a text.
type AddedToken struct {
	ID int32 `json:"id"`
	// Text is what a text has for it, Shown what it is decoded to if that is something else.
	Text  string `json:"text"`
	Shown string `json:"shown,omitempty"`
}

// LeavesOut says that the replica serves without a deployment, for what Reason tells.
func (r *Replica) LeavesOut(deployment string) bool {
	if r.Phase != Ready {
		return false
	}
	if r.Facts.LeftOut == nil {
		// A build before version 3, or one among control nodes of such, has the reason alone.
		return strings.Contains(r.Reason, "deployment "+deployment+":")
	}
	return slices.ContainsFunc(r.Facts.LeftOut, func(l LeftOut) bool { return l.Deployment == deployment })
}

// CannotRoute says that the replica serves without a deployment because it cannot have a
// router network.
func (r *Replica) CannotRoute(deployment, router string) bool {
	if r.Facts.LeftOut == nil {
		return r.LeavesOut(deployment) && strings.Contains(r.Reason, strconv.Quote(router)) // as in LeavesOut
	}
	return r.Phase == Ready && slices.Contains(r.Facts.LeftOut, LeftOut{deployment, router})
}

// Check says what is out of bounds. Errors wrap ErrCommand.
func (f *Facts) Check() error {
	for what, list := range map[string][]string{"policies": f.Policies, "routers": f.Routers} {
		if len(list) > MaxListed {
			return fmt.Errorf("%w: facts: %d %s, at most %d are allowed", ErrCommand, len(list), what, MaxListed)
		}
		for _, name := range list {
			if len(name) > MaxListedName {
				return fmt.Errorf("%w: facts: %s: a name of %d bytes, at most %d are allowed", ErrCommand, what, len(name), MaxListedName)
			}
		}
	}
	if len(f.LeftOut) > MaxLeftOut {
		return fmt.Errorf("%w: facts: %d deployments left out, at most %d are allowed", ErrCommand, len(f.LeftOut), MaxLeftOut)
	}
	for _, l := range f.LeftOut {
		if len(l.Deployment) > MaxID || len(l.Router) > MaxListedName {
			return fmt.Errorf("%w: facts: a deployment left out: a name of %d bytes and a router of %d, at most %d and %d are allowed",
				ErrCommand, len(l.Deployment), len(l.Router), MaxID, MaxListedName)
		}
	}
	return f.Words.Check()
}

// Check says what is out of bounds. Errors wrap ErrCommand.
func (w *Words) Check() error {
	if w == nil {
		return nil
	}
	if len(w.Plain) > MaxID || w.Size < 0 || len(w.Added) > MaxAdded {
		return fmt.Errorf("%w: words: %d added tokens of %d ids, at most %d are allowed", ErrCommand, len(w.Added), w.Size, MaxAdded)
	}
	sum, last := 0, int32(-1)
	for _, a := range w.Added {
		if a.ID <= last || int(a.ID) >= w.Size || a.Text == "" {
			return fmt.Errorf("%w: words: the added token %d is out of order, out of range or empty", ErrCommand, a.ID)
		}
		sum, last = sum+len(a.Text)+len(a.Shown), a.ID
	}
	if sum > MaxAddedBytes {
		return fmt.Errorf("%w: words: the texts of added tokens have %d bytes, at most %d are allowed", ErrCommand, sum, MaxAddedBytes)
	}
	return nil
}

// Bounds of a special map.
const (
	maxMapped = 1024
	maxPair   = 512
)

// checkSpecialMap says what is wrong with a special map of a deployment's models, as far
// as that can be seen without their vocabularies.
func checkSpecialMap(mapped map[string][]string, models []string) error {
	for _, name := range slices.Sorted(maps.Keys(mapped)) {
		pairs := mapped[name]
		others := models[min(1, len(models)):]
		switch {
		case !slices.Contains(others, name):
			return fmt.Errorf("%w: special_map: %.*q is none of the models behind the entry model: %s", ErrCommand, MaxID, name, strings.Join(others, ", "))
		case len(pairs) == 0:
			return fmt.Errorf("%w: special_map: %s: it has no pairs", ErrCommand, name)
		case len(pairs) > maxMapped:
			return fmt.Errorf("%w: special_map: %s: %d pairs, at most %d are allowed", ErrCommand, name, len(pairs), maxMapped)
		}
		for _, p := range pairs {
			if at := strings.LastIndexByte(p, '='); at <= 0 || at == len(p)-1 || len(p) > maxPair {
				return fmt.Errorf("%w: special_map: %s: expected ENTRY=OTHER, found %.80q", ErrCommand, name, p)
			}
		}
	}
	return nil
}
