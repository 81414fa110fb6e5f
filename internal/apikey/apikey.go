package apikey

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Sizes, in bytes.
const (
	prefix      = "tr-"
	secretBytes = 32
	idChars     = 8
	// PepperBytes is the length of a pepper.
	PepperBytes = 32
)

// Errors of Find. Clients are told the same for all of them.
var (
	ErrUnknown = errors.New("apikey: not known")
	ErrRevoked = errors.New("apikey: revoked")
	ErrExpired = errors.New("apikey: expired")
)

// New makes a key. The text is shown once and kept by its user alone; the object
// has its id and MAC, and is for the caller to complete.
func New(pepper []byte) (text string, k cluster.Key, err error) {
	var secret [secretBytes]byte
	for {
		if _, err := rand.Read(secret[:]); err != nil {
			return "", k, fmt.Errorf("apikey: %w", err)
		}
		text = prefix + base64.RawURLEncoding.EncodeToString(secret[:])
		// An id that begins with a letter or a digit is no flag on a command line.
		if id, ok := IDOf(text); ok && !strings.ContainsAny(id[:1], "-_") {
			return text, cluster.Key{ID: id, MAC: mac(pepper, text)}, nil
		}
	}
}

// IDOf is the public part of a key, false for a text that is none.
func IDOf(text string) (string, bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok || len(rest) != base64.RawURLEncoding.EncodedLen(secretBytes) {
		return "", false
	}
	return rest[:idChars], true
}

func mac(pepper []byte, text string) []byte {
	h := hmac.New(sha256.New, pepper)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// Ring is the keys of a cluster at one time. It is immutable.
type Ring struct {
	pepper []byte
	keys   map[string]cluster.Key
	// nobody stands in for a key that is not there, so that the time to look for
	// one tells nothing.
	nobody cluster.Key
}

// NewRing makes a ring of keys by id.
func NewRing(pepper []byte, keys iter.Seq2[string, cluster.Key]) *Ring {
	r := &Ring{pepper: pepper, keys: map[string]cluster.Key{}, nobody: cluster.Key{MAC: make([]byte, sha256.Size)}}
	for id, k := range keys {
		r.keys[id] = k
	}
	return r
}

// Find returns the key with that text.
func (r *Ring) Find(text string, now time.Time) (cluster.Key, error) {
	id, ok := IDOf(text)
	if !ok {
		return cluster.Key{}, ErrUnknown
	}
	k, known := r.keys[id]
	if !known {
		k = r.nobody
	}
	equal := subtle.ConstantTimeCompare(mac(r.pepper, text), k.MAC) == 1
	switch {
	case !known || !equal:
		return cluster.Key{}, ErrUnknown
	case k.Revoked:
		return cluster.Key{}, ErrRevoked
	case !k.Expires.IsZero() && now.After(k.Expires):
		return cluster.Key{}, ErrExpired
	}
	return k, nil
}
