package membership

import (
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/memberlist"
)

// probeTime bounds a Probe.
const probeTime = time.Second

// Probe asks a node's gossip port, by one datagram, whether it is there, and returns how
// long the answer took. It takes no part in the gossip; cfg's Node, Cluster and Key count.
func Probe(cfg Config, node, addr string) (time.Duration, error) {
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return 0, fmt.Errorf("membership: %w", err)
	}
	own, err := ownAddr(to)
	if err != nil {
		return 0, fmt.Errorf("membership: %w", err)
	}
	cfg.Bind, cfg.Probe = net.JoinHostPort(own, "0"), 2*probeTime
	if err := cfg.fill(); err != nil {
		return 0, err
	}
	lib, err := cfg.library()
	if err != nil {
		return 0, err
	}
	lib.ProbeTimeout = probeTime
	list, err := memberlist.Create(lib)
	if err != nil {
		return 0, fmt.Errorf("membership: listen: %w", err)
	}
	began := time.Now() // the library begins to count when it has sent
	_, err = list.Ping(node, to)
	took := time.Since(began)
	if serr := list.Shutdown(); err == nil && serr != nil {
		err = serr
	}
	if err != nil {
		return 0, fmt.Errorf("membership: ask %s at %s: %w", node, addr, err)
	}
	return took, nil
}

// ownAddr is the address of this machine that leads to another one; the answer is sent
// there. Nothing is sent to find out.
func ownAddr(to *net.UDPAddr) (string, error) {
	conn, err := net.DialUDP("udp", nil, to)
	if err != nil {
		return "", err
	}
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if cerr := conn.Close(); err == nil {
		err = cerr
	}
	return host, err
}
