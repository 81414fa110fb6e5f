package hub

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
)

// sum is a running SHA-256.
type sum struct{ hash.Hash }

func newSum() sum { return sum{sha256.New()} }

func (s sum) hex() string { return hex.EncodeToString(s.Sum(nil)) }

// commitOf names a set of files, as long as a commit of git.
func commitOf(files []File) string {
	s := newSum()
	for _, f := range files {
		fmt.Fprintf(s, "%s %s\n", f.SHA256, f.Name)
	}
	return s.hex()[:40]
}
