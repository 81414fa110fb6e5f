package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// JoinToken admits a node to a cluster: trj1.CAHASH.ID.SECRET.
type JoinToken struct {
	// CAHash is PublicKeyHash of the cluster's CA.
	CAHash [sha256.Size]byte
	// ID names the token in lists and in logs.
	ID     string
	Secret [32]byte
}

// tokenPrefix begins every token of this form.
const tokenPrefix = "trj1"

// maxToken bounds the text of a token.
const maxToken = 256

// ErrToken says that a text is no join token.
var ErrToken = errors.New("identity: not a join token")

// NewJoinToken makes a token for the cluster with that CA.
func NewJoinToken(caHash [sha256.Size]byte) (JoinToken, error) {
	t := JoinToken{CAHash: caHash}
	var id [5]byte
	if _, err := rand.Read(id[:]); err != nil {
		return t, fmt.Errorf("identity: make a token: %w", err)
	}
	if _, err := rand.Read(t.Secret[:]); err != nil {
		return t, fmt.Errorf("identity: make a token: %w", err)
	}
	t.ID = hex.EncodeToString(id[:])
	return t, nil
}

// Reveal is the token as its user types it. Nothing else prints the secret.
func (t JoinToken) Reveal() string {
	return strings.Join([]string{tokenPrefix, hex.EncodeToString(t.CAHash[:]), t.ID, base64.RawURLEncoding.EncodeToString(t.Secret[:])}, ".")
}

// String names the token without its secret.
func (t JoinToken) String() string { return tokenPrefix + "." + t.ID }

// LogValue keeps the secret out of logs.
func (t JoinToken) LogValue() slog.Value { return slog.StringValue(t.String()) }

// GoString keeps it out of %#v too.
func (t JoinToken) GoString() string { return t.String() }

// ParseJoinToken reads what Reveal wrote. Its errors do not repeat the text.
func ParseJoinToken(text string) (JoinToken, error) {
	var t JoinToken
	text = strings.TrimSpace(text)
	parts := strings.Split(text, ".")
	switch {
	case text == "":
		return t, fmt.Errorf("%w: it is empty", ErrToken)
	case len(text) > maxToken, len(parts) != 4:
		return t, fmt.Errorf("%w: it must have four parts with dots between them", ErrToken)
	case parts[0] != tokenPrefix:
		return t, fmt.Errorf("%w: it must begin with %s", ErrToken, tokenPrefix)
	}
	hash, err := hex.DecodeString(parts[1])
	if err != nil || len(hash) != len(t.CAHash) {
		return t, fmt.Errorf("%w: its second part must have %d hexadecimal digits", ErrToken, 2*len(t.CAHash))
	}
	secret, err := base64.RawURLEncoding.Strict().DecodeString(parts[3])
	if err != nil || len(secret) != len(t.Secret) {
		return t, fmt.Errorf("%w: its last part is incomplete", ErrToken)
	}
	if id, err := hex.DecodeString(parts[2]); err != nil || len(id) != 5 {
		return t, fmt.Errorf("%w: its third part must have 10 hexadecimal digits", ErrToken)
	}
	t.ID = strings.ToLower(parts[2])
	copy(t.CAHash[:], hash)
	copy(t.Secret[:], secret)
	return t, nil
}

// Hash is what the cluster keeps of the secret.
func (t JoinToken) Hash() []byte {
	h := sha256.Sum256(t.Secret[:])
	return h[:]
}

// Matches says that the secret is the one with that hash.
func (t JoinToken) Matches(hash []byte) bool { return subtle.ConstantTimeCompare(t.Hash(), hash) == 1 }
