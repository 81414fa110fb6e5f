package http1

import (
	"bufio"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// follow feeds pieces to a new scanner. It returns how many requests have ended, how many bytes were
// well-formed and why not more.
func follow(pieces ...string) (ended, good int, why Reason) {
	var s scanner
	for _, p := range pieces {
		for i := range len(p) {
			n, why := s.scan([]byte(p[i : i+1]))
			good += n
			if why != 0 {
				return ended, good, why
			}
			if s == (scanner{}) {
				ended++
			}
		}
	}
	return ended, good, 0
}

func TestScanner(t *testing.T) {
	for _, c := range append(cases(), badBodies()...) {
		t.Run(c.name, func(t *testing.T) {
			ended, good, why := follow(c.in)
			if ended != c.ok || why != c.why {
				t.Errorf("%d requests, then %q after %q; want %d, then %q", ended, why, c.in[:good], c.ok, c.why)
			}
			if out, v := slow(c.in); len(out) != c.ok || (v == refused) != (c.why != 0) {
				t.Errorf("the second parser: %d requests, verdict %d", len(out), v)
			}
			for cut := range len(c.in) + 1 {
				var s scanner
				n, got := s.scan([]byte(c.in[:cut]))
				if got == 0 {
					var m int
					m, got = s.scan([]byte(c.in[cut:]))
					n += m
				}
				if n != good || got != why {
					t.Fatalf("cut at %d: %d bytes, then %q; whole: %d, then %q", cut, n, got, good, why)
				}
			}
		})
	}
}

// endings complete what was cut off in every state of the scanner.
var endings = [...]string{
	"", "\n", "\r\n", "\r\n\r\n", "\n\r\n", "/ HTTP/1.1\r\nHost: h\r\n\r\n", " / HTTP/1.1\r\nHost: h\r\n\r\n", " HTTP/1.1\r\nHost: h\r\n\r\n",
	"1\r\nHost: h\r\n\r\n", ":\r\nHost: h\r\n\r\n", ":\r\n\r\n", "h\r\n\r\n", "]\r\n\r\n", "d\r\n\r\n0\r\n\r\n", "0\r\n\r\n", "\r\n0\r\n\r\n",
}

// check compares the scanner with the second parser and with net/http.
func check(t *testing.T, in string) {
	t.Helper()
	ended, good, why := follow(in)
	accepted, v := slow(in)
	switch {
	case why == 0 && (v == refused || ended != len(accepted)):
		t.Fatalf("%q: %d requests and no refusal; the second parser: %d, verdict %d", in, ended, len(accepted), v)
	case why != 0 && v == refused && ended != len(accepted):
		t.Fatalf("%q: %d requests, then %q; the second parser: %d", in, ended, why, len(accepted))
	case why != 0 && v == whole:
		t.Fatalf("%q: %q after %q; the second parser takes it all", in, why, in[:good])
	case why != 0 && v == partial:
		// It has not seen the whole line: nothing that can follow may please it.
		for _, e := range endings {
			if out, v := slow(in[:good+1] + e); v == whole && len(out) > ended {
				t.Fatalf("%q: %q after %q; the second parser takes it with %q", in, why, in[:good], e)
			}
		}
	}
	var s scanner
	if n, got := s.scan([]byte(in)); n != good || got != why {
		t.Fatalf("%q at once: %d bytes, then %q; byte by byte: %d, then %q", in, n, got, good, why)
	}
	sameAsLibrary(t, in, accepted)
}

// sameAsLibrary checks that net/http reads the requests as they were accepted, up to one
// that it refuses itself.
func sameAsLibrary(t *testing.T, in string, want []request) {
	t.Helper()
	under := strings.NewReader(in)
	r := bufio.NewReader(under)
	for i, w := range want {
		got, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, err := io.ReadAll(got.Body)
		if err != nil {
			return // a long trailer or extension
		}
		end := len(in) - under.Len() - r.Buffered()
		host := w.host
		if got.URL.Host != "" {
			host = got.URL.Host // absolute form
		}
		auth := strings.Join(got.Header.Values("Authorization"), "|")
		if have := (request{got.Method, got.RequestURI, got.Host, auth, string(body), end}); have != (request{w.method, w.target, host, w.auth, w.body, w.end}) {
			t.Fatalf("%q: request %d is %+v, to net/http %+v", in, i, w, have)
		}
	}
}

func FuzzScanner(f *testing.F) {
	for _, c := range append(cases(), badBodies()...) {
		f.Add(c.in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		if len(in) <= 4<<10 {
			check(t, in)
		}
	})
}

// TestChangedCases changes every byte of every case into others that mean something.
func TestChangedCases(t *testing.T) {
	marks := "\x00\n\r :;0"
	if testing.Short() {
		marks = "\n\r"
	}
	for _, c := range append(cases(), badBodies()...) {
		if strings.Contains(c.name, "long") {
			continue
		}
		for i := range len(c.in) {
			check(t, c.in[:i]+c.in[i+1:])
			for _, m := range []byte(marks) {
				in := []byte(c.in)
				in[i] = m
				check(t, string(in))
				check(t, string(slices.Insert([]byte(c.in), i, m)))
			}
		}
	}
}

func TestReasonsHaveWords(t *testing.T) {
	words := map[string]bool{Reason(0).String(): true}
	for r := BareLF; r <= Trailer; r++ {
		if words[r.String()] {
			t.Errorf("reason %d has no words of its own", r)
		}
		words[r.String()] = true
	}
}
