package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kind says how a request failed.
type Kind string

// Kinds of failure.
const (
	// KindStatus is a status other than 200.
	KindStatus Kind = "status"
	// KindInBand is an error object inside an answer of status 200.
	KindInBand Kind = "error_in_stream"
	// KindMalformed is an answer that is not the JSON of the API.
	KindMalformed Kind = "malformed"
	// KindCut is an answer that ended before its end mark or finish reason.
	KindCut Kind = "cut"
	// KindEmpty is an answer without a choice.
	KindEmpty Kind = "empty"
	// KindTooLarge is an answer over the bounds of this client.
	KindTooLarge Kind = "too_large"
	// KindTimeout is a request that took longer than Config.Timeout.
	KindTimeout Kind = "timeout"
	// KindConnect is a connection that could not be made.
	KindConnect Kind = "connect"
	// KindConnection is a connection that failed before the answer's headers came.
	KindConnection Kind = "connection"
)

// Failures is a group of failures that look alike.
type Failures struct {
	Kind Kind `json:"kind"`
	// Status is the HTTP status, 0 if there was none.
	Status int `json:"status"`
	// Code is the code of the server's error object, or empty.
	Code  string `json:"code"`
	Count int    `json:"count"`
	// Message is that of the first of them.
	Message string `json:"message"`
}

// Bounds on what is kept of failures.
const (
	maxGroups       = 64
	maxMessageBytes = 300
	maxCodeBytes    = 64
)

// failure is why one request failed.
type failure struct {
	kind    Kind
	status  int
	code    string
	message string
}

func fail(kind Kind, format string, args ...any) *failure {
	return &failure{kind: kind, message: fmt.Sprintf(format, args...)}
}

// transport sorts an error of the connection. kind is what it is unless the error
// says more.
func transport(kind Kind, err error) *failure {
	var dial *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		kind = KindTimeout
	case errors.Is(err, errEventSize):
		kind = KindTooLarge
	case errors.As(err, &dial) && dial.Op == "dial":
		kind = KindConnect
	}
	return fail(kind, "%v", err)
}

// refused reads the body of a status other than 200.
func refused(status int, body []byte) *failure {
	f := &failure{kind: KindStatus, status: status}
	var top struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &top) == nil {
		if len(top.Error) == 0 || string(top.Error) == "null" {
			top.Error = body // some servers put the fields at the root
		}
		f.read(top.Error)
	}
	if f.message == "" {
		f.message = string(bytes.TrimSpace(body))
	}
	return f
}

// inBand reads an error object of an answer with status 200.
func inBand(raw []byte) *failure {
	f := &failure{kind: KindInBand}
	if f.read(raw); f.message == "" {
		f.message = string(raw)
	}
	return f
}

// read takes message and code of an error, which is an object or a string. The
// code may be a string or a number.
func (f *failure) read(raw []byte) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		f.message = text
		return
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return
	}
	for _, name := range []string{"message", "detail"} {
		if json.Unmarshal(object[name], &text) == nil && text != "" {
			f.message = text
			break
		}
	}
	for _, name := range []string{"code", "type"} {
		var number int64
		text = ""
		if json.Unmarshal(object[name], &number) == nil && number != 0 {
			text = strconv.FormatInt(number, 10)
		} else if json.Unmarshal(object[name], &text) != nil {
			continue
		}
		if text != "" {
			f.code = text
			return
		}
	}
}

// group is what failures are counted by.
type group struct {
	kind   Kind
	status int
	code   string
}

// failures counts failures in at most maxGroups groups.
type failures map[group]*Failures

func (all failures) add(f *failure) {
	key := group{f.kind, f.status, clip(f.code, maxCodeBytes)}
	g := all[key]
	if g == nil && len(all) >= maxGroups-1 {
		key = group{kind: "other"}
		g = all[key]
	}
	if g == nil {
		g = &Failures{Kind: key.kind, Status: key.status, Code: key.code, Message: clip(f.message, maxMessageBytes)}
		all[key] = g
	}
	g.Count++
}

// sorted lists the groups, the largest first.
func (all failures) sorted() []Failures {
	out := make([]Failures, 0, len(all))
	for _, f := range all {
		out = append(out, *f)
	}
	slices.SortFunc(out, func(a, b Failures) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Status, b.Status), cmp.Compare(a.Code, b.Code))
	})
	return out
}

// clip cuts s to at most n bytes, between characters, and makes it one line
// without control characters, so that a terminal can show it.
func clip(s string, n int) string {
	if len(s) > 8*n {
		s = s[:8*n]
	}
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '\uFFFD'
		}
		return r
	}, s)
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// describe is the failure on one line.
func (f *failure) describe() string {
	return describe(f.kind, f.status, f.code, clip(f.message, maxMessageBytes))
}

func describe(kind Kind, status int, code, message string) string {
	out := string(kind)
	if status != 0 {
		out += " " + strconv.Itoa(status)
	}
	if code != "" {
		out += " (" + code + ")"
	}
	return out + ": " + message
}
