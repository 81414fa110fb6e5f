package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// cutOff answers with a status and the beginning of a text. Then the connection is lost.
type cutOff struct {
	status int
	// lose is called when that is read.
	lose func()
}

func (c *cutOff) RoundTrip(r *http.Request) (*http.Response, error) {
	end := readerFunc(func([]byte) (int, error) {
		c.lose()
		return 0, io.ErrUnexpectedEOF
	})
	body := io.NopCloser(io.MultiReader(strings.NewReader(`{"error":{"mess`), end))
	return &http.Response{StatusCode: c.status, Status: http.StatusText(c.status), Body: body, Request: r}, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// An answer that is cut off is a lost connection, and one that the user gave up an interruption,
// whatever status it began with.
func TestCutAnswer(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusUnauthorized, http.StatusServiceUnavailable} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			c := newClient("http://h:1")
			c.http.Transport = &cutOff{status, func() {}}
			if _, err := c.models(t.Context()); exitCode(err) != exitServer || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("exit code %d: %v", exitCode(err), err)
			}
			ctx, stop := context.WithCancel(t.Context())
			c.http.Transport = &cutOff{status, stop}
			if _, err := c.models(ctx); exitCode(err) != exitInterrupted {
				t.Errorf("interrupted: exit code %d: %v", exitCode(err), err)
			}
		})
	}
}
