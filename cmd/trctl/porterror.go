package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/listen"
)

// startError is what a node that could not be built ends with. A bad address is a fault
// of usage; a port that cannot be had comes with its flag and what to do.
func startError(err error) error {
	var failed *listen.Error
	var dns *net.AddrError
	switch {
	case errors.Is(err, link.ErrAddress), errors.As(err, &dns):
		return fmt.Errorf("start: %w", &usageError{err})
	case errors.As(err, &failed):
		return portError(failed)
	}
	return fmt.Errorf("start: %w", err)
}

// portError names the flag of a port that could not be opened, and what to do.
func portError(e *listen.Error) error {
	flag := map[listen.Port]string{
		listen.Public: "--listen", listen.Cluster: "--listen", listen.Gossip: "--gossip", listen.Metrics: "--metrics-listen", listen.Admin: "--admin",
	}[e.Port]
	another := fmt.Sprintf("give another address, such as %s=%s", flag, nextAddress(e.Addr))
	switch {
	case errors.Is(e, syscall.EADDRINUSE):
		return fmt.Errorf("%s: %w: another process has it; stop that one (`ss -lntup` tells which it is), or %s", flag, e, another)
	case errors.Is(e, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s: %w: it is no address of this machine; give one that is, or a port alone", flag, e)
	case errors.Is(e, syscall.EACCES):
		return fmt.Errorf("%s: %w: the system keeps this port for root; %s", flag, e, another)
	}
	return fmt.Errorf("%s: %w", flag, e)
}

// nextAddress is an address beside one that cannot be had, which may be free.
func nextAddress(addr string) string {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return ":0"
	}
	port, err := net.LookupPort("tcp", text)
	switch {
	case err != nil || port == 65535:
		port = 0
	case port < 1024:
		port += 8000
	default:
		port++
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// socketError names the flag of a socket that another process has.
func socketError(flag string, err error) error {
	if errors.Is(err, errSocketTaken) {
		return fmt.Errorf("%s: %w; stop that one, or give another path, or none", flag, err)
	}
	return err
}
