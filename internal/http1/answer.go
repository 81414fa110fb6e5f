package http1

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// builtIn is what follows the status line of an error that net/http answers with itself.
// An answer of a handler has a Date first. Were the text to change, clients would get the
// new one; a test would say so.
const builtIn = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// maxBuiltIn is more than the longest of them, in bytes.
const maxBuiltIn = 512

// How long, and for how many bytes, a client may go on sending what it was refused for.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// Write is net.Conn's. It replaces the errors of net/http itself.
func (c *conn) Write(p []byte) (int, error) {
	status, ok := builtInStatus(p)
	if !ok {
		return c.Conn.Write(p)
	}
	if err := c.answer(status); err != nil {
		return 0, err
	}
	return len(p), nil
}

// builtInStatus is the status of an error of net/http itself.
func builtInStatus(p []byte) (int, bool) {
	const version = "HTTP/1.1 "
	if len(p) > maxBuiltIn || !bytes.HasPrefix(p, []byte(version)) {
		return 0, false
	}
	end := bytes.IndexByte(p, '\r')
	if end < len(version)+3 || !bytes.HasPrefix(p[end:], []byte(builtIn)) {
		return 0, false
	}
	status, err := strconv.Atoi(string(p[len(version) : len(version)+3]))
	return status, err == nil && status >= http.StatusBadRequest
}

// answer refuses a request for good.
func (c *conn) answer(status int) error {
	r := Refusal{Status: status, Why: Reason(0).String(), Remote: c.RemoteAddr()}
	if status != http.StatusBadRequest {
		r.Why = http.StatusText(status)
	} else if why := Reason(c.refused.Load()); why != 0 {
		r.Status, r.Why = why.status(), why.String()
	}
	body := c.cfg.Answer(r)
	c.rude.Store(true)
	out := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n",
		r.Status, http.StatusText(r.Status), time.Now().UTC().Format(http.TimeFormat), len(body))
	_, err := c.Conn.Write(append(out, body...))
	return err
}

// Close is net.Conn's. The first call may take lingerTime after a refusal.
func (c *conn) Close() error {
	if c.rude.CompareAndSwap(true, false) {
		c.linger()
	}
	return c.Conn.Close()
}

// linger ends the answers and reads on for a moment: a kernel that closes a connection with
// unread bytes resets it, and the client may never see the answer. Connections that cannot
// be closed by half are left as they are.
func (c *conn) linger() {
	w, ok := c.Conn.(writeCloser)
	if !ok || w.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	var scrap [4 << 10]byte
	for total := 0; total < lingerBytes; {
		n, err := c.Conn.Read(scrap[:])
		if err != nil {
			return
		}
		total += n
	}
}
