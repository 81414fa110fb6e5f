package listen

import (
	"errors"
	"fmt"
	"net"
)

// Port is what a port is for.
type Port string

// Ports of nodes.
const (
	Public  Port = "public port"
	Cluster Port = "cluster port"
	Gossip  Port = "gossip port"
	Metrics Port = "metrics port"
	Admin   Port = "admin port"
)

// Error says that a port could not be opened.
type Error struct {
	Port Port
	// Addr is the address that was asked for.
	Addr string
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Port, e.Err) }

// Unwrap returns the system's error.
func (e *Error) Unwrap() error { return e.Err }

// TCP opens a TCP port. Its errors are of the type Error.
func TCP(port Port, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, Failed(port, addr, err)
	}
	return l, nil
}

// Failed is the error of a port that others tried to open. It is err itself if that is
// not about the address.
func Failed(port Port, addr string, err error) error {
	var op *net.OpError
	if !errors.As(err, &op) {
		return fmt.Errorf("%s: %w", port, err)
	}
	return &Error{Port: port, Addr: addr, Err: op}
}
