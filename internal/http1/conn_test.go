package http1

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/internal/leaktest"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// cutting makes connections whose first read ends at a place that is told beforehand.
type cutting struct {
	net.Listener
	cuts <-chan int // one for every connection; capacity 1, filled before it is dialled
}

func (l *cutting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &cutConn{TCPConn: c.(*net.TCPConn), left: <-l.cuts}, nil
}

// cutConn hands out one read of left bytes, and then as usual.
type cutConn struct {
	*net.TCPConn
	left int
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return c.TCPConn.Read(p)
	}
	n, err := c.TCPConn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// server is net/http over judged connections.
type server struct {
	t    *testing.T
	addr string
	cuts chan int

	mu       sync.Mutex
	seen     []request
	refusals []Refusal
}

const shown = "shown"

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusTeapot) // as a handler answers for a body that it cannot read
		return
	}
	s.mu.Lock()
	s.seen = append(s.seen, request{method: r.Method, target: r.RequestURI, body: string(body)})
	s.mu.Unlock()
	_, _ = io.WriteString(w, shown)
}

func (s *server) config() Config {
	return Config{Answer: func(r Refusal) []byte {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refusals = append(s.refusals, r)
		text, _ := json.Marshal(map[string]string{"error": r.Why})
		return text
	}}
}

// take returns what was seen since the last call.
func (s *server) take() (seen []request, refusals []Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, refusals, s.seen, s.refusals = s.seen, s.refusals, nil, nil
	return seen, refusals
}

// serve runs a server until the test ends.
func serve(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, addr: l.Addr().String(), cuts: make(chan int, 1)}
	srv := &http.Server{Handler: s, MaxHeaderBytes: 8 << 10, DisableGeneralOptionsHandler: true, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	var running conc.WaitGroup
	running.Go(func() {
		if err := srv.Serve(Listen(&cutting{l, s.cuts}, s.config())); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		_ = srv.Close()
		running.Wait()
	})
	return s
}

// send writes to a new connection, whose first read ends after cut bytes. It returns the
// statuses of the answers, the last body, and whether the server ends the connection.
func (s *server) send(in string, cut int) (statuses []int, last string, closed bool) {
	s.t.Helper()
	s.cuts <- cut
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, in); err != nil {
		s.t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		s.t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return statuses, last, closed
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			s.t.Errorf("%q: body: %v", in, err)
		}
		statuses, last, closed = append(statuses, resp.StatusCode), string(body), resp.Close
	}
}

// stride is how far apart requests are cut: everywhere in the long form.
func stride() int {
	if testing.Short() {
		return 7
	}
	return 1
}

// TestHostile sends every case over TCP, with the first read ending at every byte.
func TestHostile(t *testing.T) {
	s := serve(t)
	step := stride()
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			want := slices.Repeat([]int{200}, c.ok)
			if c.why != 0 {
				want = append(want, c.why.status())
			}
			for cut := 0; cut <= len(c.in); cut += step {
				statuses, last, closed := s.send(c.in, cut)
				seen, refusals := s.take()
				if !slices.Equal(statuses, want) || len(seen) != c.ok {
					t.Fatalf("cut at %d: statuses %v, want %v; seen %+v", cut, statuses, want, seen)
				}
				if c.why == 0 {
					continue
				}
				if len(refusals) != 1 || refusals[0].Why != c.why.String() || refusals[0].Remote == nil || last != `{"error":"`+c.why.String()+`"}` || !closed {
					t.Fatalf("cut at %d: answer %q (closed: %t), refusals %+v, want %q", cut, last, closed, refusals, c.why)
				}
			}
		})
	}
}

// TestHostileBodies has handlers that read bodies which are refused.
func TestHostileBodies(t *testing.T) {
	s := serve(t)
	step := stride()
	for _, c := range badBodies() {
		t.Run(c.name, func(t *testing.T) {
			for cut := 0; cut <= len(c.in); cut += step {
				statuses, _, closed := s.send(c.in, cut)
				if seen, _ := s.take(); !slices.Equal(statuses, []int{http.StatusTeapot}) || !closed || len(seen) > 0 {
					t.Fatalf("cut at %d: statuses %v, closed: %t, seen %+v", cut, statuses, closed, seen)
				}
			}
		})
	}
}

// TestBuiltIn has the errors that net/http finds by itself: they must be answered as JSON
// too, whatever text it has for them.
func TestBuiltIn(t *testing.T) {
	s := serve(t)
	for name, c := range map[string]struct {
		in     string
		status int
	}{
		"head too long":  {"GET /a HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 32<<10) + "\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
		"bad URL":        {"GET http://[::1/ HTTP/1.1\r\nHost: h\r\n\r\n", http.StatusBadRequest},
		"bad escape":     {"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", http.StatusBadRequest},
		"after a good":   {get + "GET a HTTP/1.1\r\nHost: h\r\n\r\n" + get, http.StatusBadRequest},
		"trailer is bad": {with("Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n", "0\r\n\r\n"), http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			statuses, last, closed := s.send(c.in, 0)
			if n := len(statuses); n == 0 || statuses[n-1] != c.status || !closed || !strings.HasPrefix(last, `{"error":"`) {
				t.Errorf("statuses %v, body %q, closed: %t", statuses, last, closed)
			}
			_, refusals := s.take()
			if len(refusals) != 1 || refusals[0].Status != c.status {
				t.Errorf("refusals %+v", refusals)
			}
		})
	}
}

// TestTooMuchBehind is refused with more behind it than a kernel buffers: the answer must arrive.
func TestTooMuchBehind(t *testing.T) {
	s := serve(t)
	s.cuts <- 0
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET /a HTTP/1.1\nHost: h\r\n\r\n"+strings.Repeat("x", 100<<10)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != 400 || string(body) != `{"error":"`+BareLF.String()+`"}` {
		t.Errorf("%d %q, %v", resp.StatusCode, body, err)
	}
}

// TestExpectContinue checks that a client is told to go on, and that what it then sends is judged.
func TestExpectContinue(t *testing.T) {
	s := serve(t)
	for body, want := range map[string]int{"3\r\nabc\r\n0\r\n\r\n": 200, "3\nabc\r\n0\r\n\r\n": http.StatusTeapot} {
		s.cuts <- 0
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		if _, err := io.WriteString(c, with("Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", "")); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != http.StatusContinue {
			t.Fatalf("%+v, %v", resp, err)
		}
		_ = resp.Body.Close()
		if _, err := io.WriteString(c, body); err != nil {
			t.Fatal(err)
		}
		if resp, err = http.ReadResponse(r, nil); err != nil || resp.StatusCode != want {
			t.Errorf("%q: %+v, %v", body, resp, err)
		}
		_ = errors.Join(resp.Body.Close(), c.Close())
	}
}

// TestEarlierRequestIsAnswered refuses a request while the one before it, read in the same
// stretch, is still computed: that one must neither be ended nor overtaken.
func TestEarlierRequestIsAnswered(t *testing.T) {
	for _, second := range []string{"GET /hidden HTTP/1.1\nHost: h\r\n\r\n", "\x00", "\n", "G\n"} {
		synctest.Test(t, func(t *testing.T) {
			l := memconn.Listen()
			s := &server{t: t}
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-r.Context().Done():
					t.Errorf("%q: the first is cancelled", second)
				case <-time.After(time.Hour):
				}
				_, _ = io.WriteString(w, shown)
			})}
			var running conc.WaitGroup
			running.Go(func() { _ = srv.Serve(Listen(l, s.config())) })
			c, err := l.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, get+second); err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(c)
			if err != nil {
				t.Fatal(err)
			}
			first, rest, ok := strings.Cut(string(text), shown)
			if !ok || !strings.HasPrefix(first, "HTTP/1.1 200 ") || !strings.HasPrefix(rest, "HTTP/1.1 400 ") {
				t.Errorf("%q: %q", second, text)
			}
			_ = errors.Join(c.Close(), srv.Close())
			running.Wait()
		})
	}
}

// TestAnswersOfHandlersPass has a handler that answers as net/http does.
func TestAnswersOfHandlersPass(t *testing.T) {
	text := "HTTP/1.1 400 Bad Request\r\nDate: now\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"
	for _, c := range []struct {
		in     string
		status int
	}{
		{text, 0},
		{"HTTP/1.1 400 Bad Request" + builtIn + "400 Bad Request", 400},
		{"HTTP/1.1 400 Bad Request: malformed Host header" + builtIn, 400},
		{"HTTP/1.1 200 OK" + builtIn, 0},
		{"HTTP/1.1 " + builtIn, 0},
		{"HTTP/1.1 4\r00" + builtIn, 0},
		{"HTTP/1.1 400 x" + builtIn + strings.Repeat("x", maxBuiltIn), 0},
		{"HTTP/1.1 400 x", 0},
		{"", 0},
	} {
		if status, ok := builtInStatus([]byte(c.in)); status != c.status && ok || ok != (c.status != 0) {
			t.Errorf("%q: %d, %t", c.in, status, ok)
		}
	}
}

// scripted is a connection that reads a text in pieces and keeps what is written.
type scripted struct {
	memAddr
	in    string
	piece int
	out   bytes.Buffer
	done  chan struct{} // closed by Close
	once  sync.Once
}

type memAddr struct{}

func (memAddr) LocalAddr() net.Addr              { return memconn.Addr{} }
func (memAddr) RemoteAddr() net.Addr             { return memconn.Addr{} }
func (memAddr) SetDeadline(time.Time) error      { return nil }
func (memAddr) SetReadDeadline(time.Time) error  { return nil }
func (memAddr) SetWriteDeadline(time.Time) error { return nil }

func (c *scripted) Read(p []byte) (int, error) {
	if c.in == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.piece)], c.in)
	c.in = c.in[n:]
	return n, nil
}

func (c *scripted) Write(p []byte) (int, error) { return c.out.Write(p) }

func (c *scripted) Close() error {
	c.once.Do(func() { close(c.done) })
	return nil
}

// once is a listener of one connection.
type once struct{ conns chan net.Conn }

func (l once) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l once) Close() error   { return nil }
func (l once) Addr() net.Addr { return memconn.Addr{} }

// FuzzServer checks that handlers see the requests that the second parser accepts, or the
// first of them, and nothing else.
func FuzzServer(f *testing.F) {
	for _, c := range append(cases(), badBodies()...) {
		f.Add(c.in, 4096)
		f.Add(c.in, 1)
	}
	f.Fuzz(func(t *testing.T, in string, piece int) {
		if len(in) > 4<<10 || piece < 1 {
			return
		}
		s := &server{t: t}
		l := once{make(chan net.Conn, 1)}
		c := &scripted{in: in, piece: piece, done: make(chan struct{})}
		l.conns <- c
		close(l.conns)
		srv := &http.Server{Handler: s, DisableGeneralOptionsHandler: true, ErrorLog: log.New(io.Discard, "", 0)}
		_ = srv.Serve(Listen(l, s.config()))
		<-c.done
		accepted, _ := slow(in)
		seen, _ := s.take()
		if len(seen) > len(accepted) {
			t.Fatalf("%q: seen %+v, accepted %+v", in, seen, accepted)
		}
		for i, r := range seen {
			if w := accepted[i]; r != (request{method: w.method, target: w.target, body: w.body}) {
				t.Fatalf("%q: request %d was accepted as %+v and seen as %+v", in, i, w, r)
			}
		}
		if answers := strings.Count(c.out.String(), " 200 OK\r\n"); answers != len(seen) {
			t.Fatalf("%q: %d requests, answers %q", in, len(seen), c.out.String())
		}
	})
}
