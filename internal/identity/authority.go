package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"
)

// Lives of certificates. Backdating allows for clocks that differ.
const (
	AuthorityLife = 10 * 365 * 24 * time.Hour
	NodeLife      = 30 * 24 * time.Hour
	backdated     = 10 * time.Minute
)

// Authority signs the certificates of a cluster's nodes.
type Authority struct {
	Certificate *x509.Certificate
	key         crypto.Signer
}

// ErrPEM says that a file does not hold what its name promises.
var ErrPEM = errors.New("identity: bad PEM")

// ErrSigningRequest says that a certificate signing request is refused.
var ErrSigningRequest = errors.New("identity: bad signing request")

// NewAuthority makes the CA of a new cluster.
func NewAuthority(clusterID string, now time.Time) (*Authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "TokenRouter " + clusterID},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(AuthorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("identity: make the CA: %w", err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("identity: make the CA: %w", err)
	}
	return &Authority{c, key}, nil
}

// ParseAuthority reads what PEM wrote.
func ParseAuthority(certificate, key []byte) (*Authority, error) {
	c, err := ParseCertificate(certificate)
	if err != nil {
		return nil, err
	}
	k, err := ParseKey(key)
	if err != nil {
		return nil, err
	}
	if !c.IsCA || !publicEqual(c.PublicKey, k.Public()) {
		return nil, fmt.Errorf("%w: the CA's certificate and key do not belong together", ErrPEM)
	}
	return &Authority{c, k}, nil
}

// PEM encodes the certificate, and the key, which must stay on control nodes.
func (a *Authority) PEM() (certificate, key []byte, err error) {
	key, err = EncodeKey(a.key)
	return encodeCertificate(a.Certificate.Raw), key, err
}

// Derive makes a secret of n bytes that every control node makes alike, and nobody who
// does not have the CA's key. Other purposes give other secrets.
func (a *Authority) Derive(purpose string, n int) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("identity: encode a key: %w", err)
	}
	out, err := hkdf.Key(sha256.New, der, nil, "tokenrouter "+purpose, n)
	if err != nil {
		return nil, fmt.Errorf("identity: derive a secret: %w", err)
	}
	return out, nil
}

// Issue signs a node's request (DER) for a name, whatever the request says of names, for
// NodeLife.
func (a *Authority) Issue(request []byte, name Name, now time.Time) ([]byte, error) {
	return a.IssueUntil(request, name, now, now.Add(NodeLife))
}

// IssueUntil signs a request as Issue does, for a certificate that ends at a time, which
// is to come and at most NodeLife away.
func (a *Authority) IssueUntil(request []byte, name Name, now, until time.Time) ([]byte, error) {
	if !until.After(now) || until.After(now.Add(NodeLife)) {
		return nil, fmt.Errorf("%w: the certificate would end at %s", ErrSigningRequest, until.UTC().Format(time.RFC3339))
	}
	if !name.valid() {
		return nil, fmt.Errorf("%w: the name %q cannot be used", ErrSigningRequest, name)
	}
	r, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSigningRequest, err)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSigningRequest, err)
	}
	if k, ok := r.PublicKey.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%w: the key must be of P-256", ErrSigningRequest)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name.Node}, URIs: []*url.URL{name.URI()},
		NotBefore: now.Add(-backdated), NotAfter: until,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, r.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("identity: sign for %s: %w", name, err)
	}
	return encodeCertificate(der), nil
}

// NewKey makes a node's key and the request to sign it (DER).
func NewKey() (key crypto.Signer, request []byte, err error) {
	k, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	request, err = SigningRequest(k)
	return k, request, err
}

// SigningRequest asks for a certificate for a key (DER).
func SigningRequest(key crypto.Signer) ([]byte, error) {
	request, err := x509.CreateCertificateRequest(rand.Reader, new(x509.CertificateRequest), key)
	if err != nil {
		return nil, fmt.Errorf("identity: make a signing request: %w", err)
	}
	return request, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("identity: make a key: %w", err)
	}
	return key, nil
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("identity: make a serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

// PublicKeyHash is SHA-256 of a certificate's public key, by which tokens name a CA.
func PublicKeyHash(c *x509.Certificate) [sha256.Size]byte {
	return sha256.Sum256(c.RawSubjectPublicKeyInfo)
}

// PEM types.
const (
	certificateType = "CERTIFICATE"
	keyType         = "PRIVATE KEY"
)

// ParseCertificate reads one certificate.
func ParseCertificate(text []byte) (*x509.Certificate, error) {
	der, err := decode(text, certificateType)
	if err != nil {
		return nil, err
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPEM, err)
	}
	return c, nil
}

// ParseKey reads a private key.
func ParseKey(text []byte) (crypto.Signer, error) {
	der, err := decode(text, keyType)
	if err != nil {
		return nil, err
	}
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%w: the key cannot be read", ErrPEM)
	}
	signer, ok := k.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%w: the key cannot sign", ErrPEM)
	}
	return signer, nil
}

// EncodeKey is the form of a key in a file.
func EncodeKey(k crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("identity: encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyType, Bytes: der}), nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: der})
}

func decode(text []byte, want string) ([]byte, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != want {
		return nil, fmt.Errorf("%w: there is no %s", ErrPEM, want)
	}
	return block.Bytes, nil
}

func publicEqual(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// nextPEM cuts off the first block of a text.
func nextPEM(text []byte) (block, rest []byte, ok bool) {
	b, rest := pem.Decode(text)
	if b == nil {
		return nil, nil, false
	}
	return pem.EncodeToMemory(b), rest, true
}
