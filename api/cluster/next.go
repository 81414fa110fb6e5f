//go:build nextprotocol

package cluster

// KindAnnotate is a command that only the next version has: Annotation.
const KindAnnotate Kind = "annotate"

// Annotation is the operator's word about the cluster. It means nothing to nodes.
type Annotation struct {
	Note string `json:"note"`
}

// NextFields are the cluster's fields that only the next version has.
type NextFields struct {
	Note string `json:"note,omitempty"`
}

// next is the version and an empty body of a kind that only the next version has.
func (k Kind) next() (since int, body any) {
	if k == KindAnnotate {
		return Protocol, new(Annotation)
	}
	return 0, nil
}
