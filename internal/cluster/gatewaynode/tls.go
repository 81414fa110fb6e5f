package gatewaynode

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/alpn"
)

// recheck is how often the files of a certificate are looked at, at most.
const recheck = time.Second

// certificate is the public port's, from two files that may change.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger
	now               func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	looked  time.Time
	// seen is what the files were when current was read.
	seen [2]stamp
}

// stamp tells one version of a file from another.
type stamp struct {
	at   time.Time
	size int64
}

func newCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log, now: time.Now}
	seen, err := c.stamps()
	if err == nil {
		err = c.load(seen)
	}
	if err != nil {
		return nil, err
	}
	c.looked = c.now()
	return c, nil
}

func (c *certificate) stamps() (out [2]stamp, err error) {
	for i, name := range []string{c.certFile, c.keyFile} {
		f, err := os.Stat(name)
		if err != nil {
			return out, fmt.Errorf("certificate of the public port: %w", err)
		}
		out[i] = stamp{f.ModTime(), f.Size()}
	}
	return out, nil
}

func (c *certificate) load(seen [2]stamp) error {
	// Its errors name the files and what is wrong, and nothing of a key.
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("certificate of the public port: %w", err)
	}
	c.current, c.seen = &pair, seen
	return nil
}

// get is for tls.Config.GetCertificate. A certificate that cannot be read leaves the
// one before it in place.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); now.Sub(c.looked) >= recheck {
		c.looked = now
		seen, err := c.stamps()
		if err == nil && seen != c.seen {
			if err = c.load(seen); err == nil {
				c.log.Info("certificate of the public port read again")
			}
		}
		if err != nil {
			c.log.Warn("certificate not read again", "err", err)
		}
	}
	return c.current, nil
}

// Bounds of handshakes on the public port. Many may be pending, since strangers can keep
// them so until the timeout.
const (
	handshakeTimeout = 5 * time.Second
	maxHandshakes    = 4096
)

// notTLS is what clients get that speak plain HTTP.
const notTLS = "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nThis port speaks HTTPS.\n"

// protocols are those of the public port by their names in ALPN. Clients that name none
// mean HTTP/1.
func protocols() []string { return []string{"h2", "http/1.1", ""} }

// secure makes a listener's connections TLS, and parts them by protocol.
func (c *certificate) secure(l net.Listener) (*alpn.Mux, error) {
	return alpn.New(l, alpn.Config{
		TLS:              &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: c.get},
		HandshakeTimeout: handshakeTimeout, MaxPending: maxHandshakes, Plaintext: []byte(notTLS), Log: c.log,
	}, protocols()...)
}
