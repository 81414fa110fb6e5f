package http1

import (
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// client is the head of a request of the OpenAI SDK for Python, with a body of n bytes.
func client(n int) []byte {
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n" +
		"Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 3.57.0\r\nX-Stainless-Lang: python\r\n" +
		"X-Stainless-Package-Version: 3.57.0\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n" +
		"X-Stainless-Runtime-Version: 3.12.3\r\nAuthorization: Bearer not-needed\r\nX-Stainless-Async: false\r\nx-stainless-retry-count: 0\r\n" +
		"x-stainless-read-timeout: 600\r\nContent-Length: " + strconv.Itoa(n) + "\r\n\r\n"
	return append([]byte(head), make([]byte, n)...)
}

// endless reads the same bytes over and over, left in all. It is closed once.
type endless struct {
	memAddr
	in       []byte
	at, left int
	done     chan struct{} // closed by Close
}

func (c *endless) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, io.EOF
	}
	n := copy(p, c.in[c.at:])
	c.at, c.left = (c.at+n)%len(c.in), c.left-n
	return n, nil
}

func (c *endless) Write(p []byte) (int, error) { return len(p), nil }

func (c *endless) Close() error {
	close(c.done)
	return nil
}

// BenchmarkRead reads requests through a judged connection and without one, as net/http
// does: 4 KiB at a time.
func BenchmarkRead(b *testing.B) {
	chunks := "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1000\r\n"+strings.Repeat("x", 4096)+"\r\n", 256) + "0\r\n\r\n"
	for _, c := range []struct {
		name string
		in   []byte
	}{{"head", client(0)}, {"1KB", client(1 << 10)}, {"1MB", client(1 << 20)}, {"1MB chunks", []byte(chunks)}} {
		for name, wrap := range map[string]func(net.Conn) net.Conn{
			"plain":  func(c net.Conn) net.Conn { return c },
			"judged": func(c net.Conn) net.Conn { return &conn{Conn: c} },
		} {
			b.Run(fmt.Sprintf("%s/%s", c.name, name), func(b *testing.B) {
				l := wrap(&endless{in: c.in, left: math.MaxInt})
				p := make([]byte, 4<<10)
				b.SetBytes(int64(len(c.in)))
				b.ReportAllocs()
				for b.Loop() {
					for total := 0; total < len(c.in); {
						n, err := l.Read(p[:min(len(p), len(c.in)-total)])
						if err != nil {
							b.Fatal(err)
						}
						total += n
					}
				}
			})
		}
	}
}

// BenchmarkServe has net/http answer requests of a connection one after the other. On a
// busy machine the least of many batches says more than the mean.
func BenchmarkServe(b *testing.B) {
	for _, c := range []struct {
		name string
		in   []byte
	}{{"1KB", client(1 << 10)}, {"1MB", client(1 << 20)}} {
		for name, wrap := range map[string]func(net.Listener) net.Listener{
			"plain":  func(l net.Listener) net.Listener { return l },
			"judged": func(l net.Listener) net.Listener { return Listen(l, Config{}) },
		} {
			b.Run(fmt.Sprintf("%s/%s", c.name, name), func(b *testing.B) {
				b.SetBytes(int64(len(c.in)))
				b.ReportAllocs()
				l := once{make(chan net.Conn, 1)}
				under := &endless{in: c.in, left: b.N * len(c.in), done: make(chan struct{})}
				l.conns <- under
				close(l.conns)
				const batch = 20
				least, last, n := time.Duration(math.MaxInt64), time.Now(), 0
				srv := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					if n++; n%batch == 0 {
						now := time.Now()
						least, last = min(least, now.Sub(last)), now
					}
				})}
				_ = srv.Serve(wrap(l))
				<-under.done
				b.ReportMetric(float64(least)/batch, "least-ns/op")
			})
		}
	}
}
