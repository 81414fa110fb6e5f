package http1

import (
	"regexp"
	"strconv"
	"strings"
)

// request is what a parser made of one request.
type request struct {
	method, target, host, auth, body string
	end                              int // the offset of the first byte after it
}

var (
	slowLine  = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+ [^\\x00-\\x20\\x7f]+ HTTP/1\\.[0-9]$")
	slowField = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+:[^\\x00-\\x08\\x0a-\\x1f\\x7f]*$")
	slowHost  = regexp.MustCompile(`^([-._~0-9A-Za-z!$&'()*+,;=]|%[0-9a-fA-F]{2})+(:[0-9]*)?$|^\[[0-9a-fA-F:.]{2,}(%[-._~%0-9A-Za-z]*)?\](:[0-9]*)?$`)
	slowSize  = regexp.MustCompile(`^[0-9a-fA-F]{1,16}(;[^\x00-\x08\x0a-\x1f\x7f]*)?$`)
)

// verdict is what is wrong with a stretch of bytes.
type verdict int

const (
	whole   verdict = iota // nothing, and it ends with a request
	partial                // nothing, but it ends in the midst of one
	refused
)

// slow is the second opinion on the scanner: it splits strings and matches expressions,
// and judges a line only once it is whole.
func slow(in string) (out []request, v verdict) {
	for at := 0; at < len(in); {
		r, end, v := slowRequest(in, at)
		if v != whole {
			return out, v
		}
		r.end, at = end, end
		out = append(out, r)
	}
	return out, whole
}

// line cuts a line off at its CR LF. Neither byte may stand alone.
func line(in string, at int) (text string, end int, v verdict) {
	n := strings.IndexByte(in[at:], '\n')
	if n < 0 {
		return "", at, partial
	}
	text = in[at : at+n+1]
	if !strings.HasSuffix(text, "\r\n") || strings.Count(text, "\r") != 1 {
		return "", at, refused
	}
	return strings.TrimSuffix(text, "\r\n"), at + n + 1, whole
}

func slowRequest(in string, at int) (r request, end int, v verdict) {
	first, at, v := line(in, at)
	if v != whole {
		return r, at, v
	}
	if !slowLine.MatchString(first) {
		return r, at, refused
	}
	words := strings.Split(first, " ")
	r.method, r.target = words[0], words[1]
	old := words[2] == "HTTP/1.0"
	fields, at, v := slowFields(in, at)
	if v != whole {
		return r, at, v
	}
	for _, name := range []string{"host", "authorization", "content-length", "transfer-encoding", "content-type", "origin"} {
		if len(fields[name]) > 1 && name != "authorization" {
			return r, at, refused
		}
	}
	host, length, encoding := fields["host"], fields["content-length"], fields["transfer-encoding"]
	switch {
	case len(host) == 0 && !old,
		len(host) == 1 && !goodHost(host[0]),
		len(encoding) == 1 && (old || len(length) > 0 || !strings.EqualFold(encoding[0], "chunked")):
		return r, at, refused
	}
	r.host, r.auth = strings.Join(host, ""), strings.Join(fields["authorization"], "|")
	if len(encoding) == 1 {
		r.body, end, v = slowChunks(in, at)
		return r, end, v
	}
	if len(length) == 0 {
		return r, at, whole
	}
	n, err := strconv.ParseUint(length[0], 10, 63)
	switch {
	case err != nil:
		return r, at, refused
	case n > uint64(len(in)-at):
		return r, at, partial
	}
	r.body = in[at : at+int(n)]
	return r, at + int(n), whole
}

// slowFields reads lines up to an empty one.
func slowFields(in string, at int) (fields map[string][]string, end int, v verdict) {
	fields = map[string][]string{}
	for {
		var text string
		if text, at, v = line(in, at); v != whole || text == "" {
			return fields, at, v
		}
		if !slowField.MatchString(text) {
			return nil, at, refused
		}
		name, value, _ := strings.Cut(text, ":")
		name = strings.ToLower(name)
		fields[name] = append(fields[name], strings.Trim(value, " \t"))
	}
}

func goodHost(h string) bool {
	if !slowHost.MatchString(h) {
		return false
	}
	after := h[strings.LastIndexByte(h, ']')+1:]
	_, port, _ := strings.Cut(after, ":")
	if port == "" {
		return true
	}
	n, err := strconv.ParseUint(port, 10, 63)
	return err == nil && n < 1<<16
}

func slowChunks(in string, at int) (body string, end int, v verdict) {
	for {
		var text string
		if text, at, v = line(in, at); v != whole {
			return body, at, v
		}
		if !slowSize.MatchString(text) {
			return body, at, refused
		}
		digits, _, _ := strings.Cut(text, ";")
		n, err := strconv.ParseUint(digits, 16, 63)
		if err != nil {
			return body, at, refused
		}
		if n == 0 {
			break
		}
		if n > uint64(len(in)-at) {
			return body, at, partial
		}
		body += in[at : at+int(n)]
		at += int(n)
		mark := in[at:min(at+2, len(in))]
		switch {
		case mark == "\r\n":
		case strings.HasPrefix("\r\n", mark):
			return body, at, partial
		default:
			return body, at, refused
		}
		at += 2
	}
	fields, at, v := slowFields(in, at)
	for _, name := range []string{"host", "authorization", "content-length", "transfer-encoding", "content-type", "origin"} {
		if v == whole && len(fields[name]) > 0 {
			v = refused
		}
	}
	return body, at, v
}
