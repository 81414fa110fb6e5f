package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Probe says whether a control node takes the caller's certificate: nil if it does,
// ErrCertificate if it does not, and any other error if that is not known. The node has
// shown by its own certificate who it is before it is believed; what comes earlier, anybody
// on the way may have sent.
func (p *Peers) Probe(ctx context.Context, node, addr string) error {
	conn, err := p.dial(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("probe %s: %w", addr, err)
	}
	secured := tls.Client(conn, p.credentials.Client(identity.ProtocolHTTP, node, cluster.Control))
	defer func() { _ = secured.Close() }() // nothing was sent
	if err := secured.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("probe %s: %w", addr, err)
	}
	// The handshake ends here before the node has looked at the certificate. One that takes it
	// speaks first, as HTTP/2 has it.
	stop := context.AfterFunc(ctx, func() { _ = secured.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = secured.Read(make([]byte, 1))
	switch {
	case err == nil:
		return nil
	case refusesCertificate(err):
		return fmt.Errorf("probe %s: %w: %w", addr, ErrCertificate, err)
	}
	return fmt.Errorf("probe %s: %w", addr, err)
}
