package node

import (
	"net"
	"net/http"
	"testing"

	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

func TestPrivate(t *testing.T) {
	memory := memconn.Listen()
	defer memory.Close()
	tests := []struct {
		address net.Addr
		want    bool
	}{
		{memory.Addr(), true},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, true},
		{&net.TCPAddr{IP: net.IPv4(127, 3, 2, 1)}, true},
		{&net.TCPAddr{IP: net.IPv6loopback}, true},
		{&net.TCPAddr{IP: net.IPv4zero}, false},
		{&net.TCPAddr{IP: net.IPv6unspecified}, false},
		{&net.TCPAddr{}, false},
		{&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, false},
	}
	for _, test := range tests {
		if got := private(test.address); got != test.want {
			t.Errorf("%v: got %v", test.address, got)
		}
	}
}

// Metrics are for this machine: the port has them while nobody else reaches it.
func TestMetricsOnLoopbackAlone(t *testing.T) {
	for address, want := range map[string]int{"127.0.0.1:0": http.StatusOK, ":0": http.StatusNotFound} {
		r := start(t, func(c *Config) { c.Listen = address })
		_, port, err := net.SplitHostPort(r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Get("http://" + net.JoinHostPort("127.0.0.1", port) + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: status %d, want %d", address, resp.StatusCode, want)
		}
	}
}
