package link

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// ErrAddress says that an address cannot be told to others.
var ErrAddress = errors.New("bad address")

// Advertised is what others are told of a listener's address. wanted, if not empty, is
// the operator's word: a host with or without a port. Otherwise it is the listener's
// own host, or the one from which this machine reaches peer (host:port, may be empty)
// if the listener takes connections at every address.
func Advertised(wanted string, listener net.Addr, peer string) (string, error) {
	host, port, err := net.SplitHostPort(listener.String())
	if err != nil {
		return "", fmt.Errorf("%w: the listener's is %s: %w", ErrAddress, listener, err)
	}
	if wanted != "" {
		h, p, err := net.SplitHostPort(wanted)
		switch {
		case err != nil:
			host = wanted
		case p == "" || p == "0":
			host = h
		default:
			host, port = h, p
		}
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() || ip == nil && !hostName(host) {
			return "", fmt.Errorf("%w: %q is none that others can connect to", ErrAddress, wanted)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return "", fmt.Errorf("%w: %q has no valid port", ErrAddress, wanted)
		}
		return net.JoinHostPort(host, port), nil
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = ownHost(peer)
	}
	return net.JoinHostPort(host, port), nil
}

// hostName says that a text may be the name of a host, or an IPv6 address with a zone.
func hostName(host string) bool {
	const maxName = cluster.MaxID - len(":65535")
	if ip, _, zoned := strings.Cut(host, "%"); zoned && net.ParseIP(ip) != nil {
		host = strings.Replace(host[len(ip):], "%", "z", 1)
	}
	return host != "" && len(host) <= maxName && !strings.ContainsFunc(host, func(r rune) bool {
		return r != '-' && r != '.' && r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}

// ownHost is an address of this machine: the one that leads to peer, else the first
// that is not of loopback, else that of loopback. Nothing is sent.
func ownHost(peer string) string {
	if peer != "" {
		if conn, err := net.Dial("udp", peer); err == nil {
			host, _, err := net.SplitHostPort(conn.LocalAddr().String())
			if cerr := conn.Close(); err == nil && cerr == nil {
				return host
			}
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		addrs = nil // loopback it is
	}
	best := ""
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() {
			continue
		}
		if n.IP.To4() != nil {
			return n.IP.String()
		}
		if best == "" {
			best = n.IP.String()
		}
	}
	if best == "" {
		return "127.0.0.1"
	}
	return best
}
