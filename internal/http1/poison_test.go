package http1

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
)

// readable counts the requests that net/http reads whole.
func readable(in io.Reader) int {
	r := bufio.NewReader(in)
	for n := 0; ; n++ {
		req, err := http.ReadRequest(r)
		if err != nil {
			return n
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return n
		}
	}
}

// zeros reads as zeros, and fails once nobody should read any more.
type zeros struct{ left int }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left -= len(p); z.left < 0 {
		return 0, io.ErrUnexpectedEOF
	}
	clear(p)
	return len(p), nil
}

// TestPoison cuts well-formed requests at every byte but in a body, where nothing is refused: what
// was cut must never be read as a request.
func TestPoison(t *testing.T) {
	for _, c := range append(cases(), badBodies()...) {
		_, good, _ := follow(c.in)
		var s scanner
		for cut := range good {
			if s.state != inBody && s.state != inChunk {
				ended, _, _ := follow(c.in[:cut])
				rest := &zeros{left: 64 << 10}
				if n := readable(io.MultiReader(strings.NewReader(c.in[:cut]), strings.NewReader(poison), rest)); n > ended {
					t.Errorf("%s: %d requests after %q, want %d", c.name, n, c.in[:cut], ended)
				}
				if rest.left < 0 {
					t.Errorf("%s: read on after %q", c.name, c.in[:cut])
				}
			}
			s.scan([]byte(c.in[cut : cut+1]))
		}
	}
}
