package main

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/tokenrouter/tokenrouter/internal/listen"
)

// Who cannot have a port is told by which flag to choose another one.
func TestPortErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	for port, flag := range map[listen.Port]string{
		listen.Public: "--listen", listen.Cluster: "--listen", listen.Gossip: "--gossip", listen.Metrics: "--metrics-listen", listen.Admin: "--admin",
	} {
		_, err := listen.TCP(port, addr)
		text := startError(err).Error()
		for _, part := range []string{flag + ": ", addr, "address already in use", "ss -lntup", "such as " + flag + "=127.0.0.1:"} {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q lacks %q", port, text, part)
			}
		}
		if exitCode(startError(err)) != exitFailed {
			t.Errorf("%s: exit code %d", port, exitCode(startError(err)))
		}
	}
	for number, part := range map[syscall.Errno]string{syscall.EACCES: "--listen=:8080", syscall.EADDRNOTAVAIL: "no address of this machine"} {
		text := portError(&listen.Error{Port: listen.Public, Addr: ":80", Err: number}).Error()
		if !strings.HasPrefix(text, "--listen: ") || !strings.Contains(text, part) {
			t.Errorf("%v: %s", number, text)
		}
	}
	for addr, want := range map[string]string{":80": ":8080", "10.0.0.1:7000": "10.0.0.1:7001", "[::1]:65535": "[::1]:0", "x": ":0"} {
		if got := nextAddress(addr); got != want {
			t.Errorf("beside %s: %s", addr, got)
		}
	}
}

// Another port than the gossip's that is taken does not move the gossip.
func TestGossipStaysWhereItIs(t *testing.T) {
	for port, want := range map[listen.Port]string{listen.Gossip: ":0", listen.Public: defaultGossip} {
		got, err := withGossip("", slog.New(slog.DiscardHandler), func(addr string) error {
			if addr == ":0" {
				return nil
			}
			return errors.Join(&listen.Error{Port: port, Addr: addr, Err: syscall.EADDRINUSE})
		})
		if got != want || (err != nil) != (port != listen.Gossip) {
			t.Errorf("%s is taken: the gossip is at %s, %v", port, got, err)
		}
	}
}
