package listen

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

func TestErrorsNameThePort(t *testing.T) {
	l, err := TCP(Public, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	addr := l.Addr().String()
	_, err = TCP(Metrics, addr)
	var failed *Error
	if !errors.As(err, &failed) || failed.Port != Metrics || failed.Addr != addr || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%#v", err)
	}
	if got, want := err.Error(), "metrics port: listen tcp "+addr+": bind: address already in use"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	err = Failed(Gossip, addr, fmt.Errorf("library: %w", failed.Err))
	if got, want := err.Error(), "gossip port: listen tcp "+addr+": bind: address already in use"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	other := errors.New("no key")
	if err := Failed(Gossip, addr, other); !errors.Is(err, other) || errors.As(err, &failed) && failed.Port == Gossip {
		t.Errorf("%#v", err)
	}
}
