package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Beat sends a heartbeat every interval until ctx ends. heard, which may be nil, gets
// each answer. It returns ctx's cause, or ErrRemoved. That the certificate is refused, as
// after a removal that the node was cut off from, is logged and ends nothing: a clock may be
// wrong, and requests that it has go on.
func (c *Client) Beat(ctx context.Context, interval time.Duration, beat func() cluster.Beat, heard func(cluster.BeatReply)) error {
	failing, refused := false, false
	for {
		began := time.Now()
		reply, err := c.Heartbeat(ctx, beat())
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrRemoved):
			return err
		case errors.Is(err, ErrCertificate):
			if !refused {
				c.cfg.Log.Error("the control nodes refuse this node's certificate: it was removed, or clocks differ; it gets nothing new", "err", err)
			}
			refused = true
		case err != nil && !failing:
			c.cfg.Log.Warn("heartbeat failed", "err", err)
		case err == nil && failing:
			c.cfg.Log.Info("heartbeats are heard again")
		}
		failing, refused = err != nil, refused && err != nil
		if err == nil && heard != nil {
			heard(reply)
		}
		if !sleep(ctx, max(interval/10, interval-time.Since(began))) {
			return context.Cause(ctx)
		}
	}
}

// Renew asks for a new certificate for a new key and puts both into the credentials.
// It returns them for the node's files.
func (c *Client) Renew(ctx context.Context) (certificate, key []byte, cas [][]byte, err error) {
	signer, request, err := identity.NewKey()
	if err != nil {
		return nil, nil, nil, err
	}
	if key, err = identity.EncodeKey(signer); err != nil {
		return nil, nil, nil, err
	}
	var reply cluster.RenewResponse
	if err := c.call(ctx, cluster.PathRenew, cluster.RenewRequest{Request: request}, &reply, cluster.MaxCall); err != nil {
		return nil, nil, nil, err
	}
	for _, ca := range reply.CAs {
		cas = append(cas, []byte(ca))
	}
	certificate = []byte(reply.Certificate)
	if err := c.cfg.Credentials.Replace(certificate, key, cas); err != nil {
		return nil, nil, nil, err
	}
	c.peers.Reset() // connections keep the certificate that they began with
	return certificate, key, cas, nil
}

// Pauses of KeepRenewed after a failure.
const minRenewPause, maxRenewPause = 10 * time.Second, time.Hour

// KeepRenewed renews the certificate after two thirds of its life, again and again,
// until ctx ends. save keeps it in the node's files. What fails is logged and
// repeated.
func (c *Client) KeepRenewed(ctx context.Context, save func(certificate, key []byte, cas [][]byte) error) error {
	for {
		if !sleep(ctx, time.Until(c.cfg.Credentials.Renew())) {
			return context.Cause(ctx)
		}
		var certificate, key []byte
		var cas [][]byte
		renewed := c.persist(ctx, "certificate not renewed", func() (err error) {
			certificate, key, cas, err = c.Renew(ctx)
			return err
		})
		if !renewed || !c.persist(ctx, "certificate not saved", func() error { return save(certificate, key, cas) }) {
			return context.Cause(ctx)
		}
		c.cfg.Log.Info("certificate renewed", "until", c.cfg.Credentials.Expires())
	}
}

// persist repeats f until it succeeds; false means that ctx ended.
func (c *Client) persist(ctx context.Context, what string, f func() error) bool {
	for pause := minRenewPause; ; pause = min(2*pause, maxRenewPause) {
		err := f()
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		c.cfg.Log.Warn(what, "until", c.cfg.Credentials.Expires(), "err", err)
		if !sleep(ctx, pause/2+rand.N(pause)) {
			return false
		}
	}
}
