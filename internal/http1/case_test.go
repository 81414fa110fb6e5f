package http1

import "strings"

// hostile is a stretch of bytes of which the first ok requests are answered and the next is
// refused for a reason; 0 for none.
type hostile struct {
	name string
	in   string
	ok   int
	why  Reason
}

// hidden is the request that smugglers want to be seen. Its path must never be served.
const hidden = "GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"

// with is a POST with more headers, whose lines end in CR LF, and a body.
func with(headers, body string) string {
	return "POST /a HTTP/1.1\r\nHost: h\r\n" + headers + "\r\n" + body
}

const get = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n"

// cases are requests that are fine, and requests that are not.
func cases() []hostile {
	chunked := "Transfer-Encoding: chunked\r\n"
	return []hostile{
		{"get", get, 1, 0},
		{"pipelined", get + with("Content-Length: 3\r\n", "abc") + get, 3, 0},
		{"chunks", with(chunked, "3\r\nabc\r\n00A;x=\"y z\"\r\n0123456789\r\n0\r\n\r\n") + get, 2, 0},
		{"trailer", with(chunked, "1\r\na\r\n0;last\r\nX-Sum: 1\r\nX-More:\r\n\r\n") + get, 2, 0},
		{"absolute form", "GET http://other/a HTTP/1.1\r\nHost: h\r\n\r\n" + get, 2, 0},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n" + get, 2, 0},
		{"1.0 kept", "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + get, 2, 0},
		{"spaces around values", with("Content-Length: \t 3 \t\r\nX:\r\nY: \ta\tb \xff\r\n", "abc") + get, 2, 0},
		{"leading zeros", with("Content-Length: 0003\r\n", "abc"), 1, 0},
		{"no length", with("Content-Length: 0\r\n", "") + get, 2, 0},
		{"names in any case", with("tRANSFER-eNCODING: ChUnKeD \r\n", "0\r\n\r\n") + get, 2, 0},
		{"lists may repeat", with("Accept: a\r\nAccept: b\r\nX: 1\r\nX: 2\r\n", ""), 1, 0},
		{"a long name", with("Transfer-Encoding-And-More: x\r\n"+strings.Repeat("n", 300)+": y\r\n", ""), 1, 0},
		{"data that looks like a head", with("Content-Length: 34\r\n", hidden+"\n") + get, 2, 0},
		{"chunk that looks like an end", with(chunked, "7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n") + get, 2, 0},
		{"host with a port", "GET /a HTTP/1.1\r\nHost: a-b.c_d~:8000\r\n\r\n", 1, 0},
		{"host of IPv6", "GET /a HTTP/1.1\r\nHost:[fe80::1%25eth0]:80\r\n\r\n", 1, 0},
		{"host with an escape", "GET /a HTTP/1.1\r\nHost: a%2Fb\r\n\r\n", 1, 0},

		{"LF in the request line", "GET /a HTTP/1.1\nHost: h\r\n\r\n" + hidden, 0, BareLF},
		{"LF after a header", "GET /a HTTP/1.1\r\nHost: h\nX: y\r\n\r\n" + hidden, 0, BareLF},
		{"LF after a plain header", "GET /a HTTP/1.1\r\nHost: h\r\nX: y\n\r\n" + hidden, 0, BareLF},
		{"LF for the empty line", "GET /a HTTP/1.1\r\nHost: h\r\n\n" + hidden, 0, BareLF},
		{"LF alone everywhere", "GET /a HTTP/1.1\nHost: h\n\n" + hidden, 0, BareLF},
		{"LF in a value", with("X: a\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+hidden), 0, BareLF},
		{"CR in a value", with("X: a\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+hidden), 0, BareCR},
		{"two CR", "GET /a HTTP/1.1\r\r\nHost: h\r\n\r\n" + hidden, 0, BareCR},
		{"CR CR LF after the headers", "GET /a HTTP/1.1\r\nHost: h\r\n\r\r\n" + hidden, 0, BareCR},
		{"empty line first", "\r\n" + get, 0, Line},
		{"empty line between", with("Content-Length: 1\r\n", "a\r\n") + get, 1, Line},
		{"LF between", get + "\n" + hidden, 1, BareLF},
		{"NUL between", get + "\x00" + hidden, 1, Line},
		{"space first", " " + get, 0, Line},
		{"HTTP/0.9", "GET /a\r\n\r\n" + hidden, 0, Line},
		{"two spaces", "GET  /a HTTP/1.1\r\nHost: h\r\n\r\n", 0, Line},
		{"space in the target", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 0, Line},
		{"tab in the request line", "GET\t/a HTTP/1.1\r\nHost: h\r\n\r\n", 0, Line},
		{"space after the version", "GET /a HTTP/1.1 \r\nHost: h\r\n\r\n", 0, Line},
		{"version in small letters", "GET /a http/1.1\r\nHost: h\r\n\r\n", 0, Line},
		{"version of two digits", "GET /a HTTP/1.10\r\nHost: h\r\n\r\n", 0, Line},
		{"method with a bracket", "G(T /a HTTP/1.1\r\nHost: h\r\n\r\n", 0, Line},
		{"control character in the target", "GET /a\x01 HTTP/1.1\r\nHost: h\r\n\r\n", 0, Line},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00", 0, Version},
		{"HTTP/0.9 by name", "GET /a HTTP/0.9\r\n\r\n", 0, Version},

		{"fold", with("X: a\r\n b\r\n", "") + hidden, 0, Fold},
		{"fold by tab", with("X: a\r\n\tTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+hidden), 0, Fold},
		{"fold of the length", with("Content-Length:\r\n 5\r\n", "abcde"), 0, Length},
		{"fold of the first line", "GET /a HTTP/1.1\r\n Host: h\r\n\r\n", 0, Fold},
		{"space before the colon", with("Content-Length : 5\r\n", "abcde"), 0, Space},
		{"tab before the colon", with("Transfer-Encoding\t: chunked\r\n", "0\r\n\r\n"+hidden), 0, Space},
		{"space in a name", with("X Y: 1\r\n", ""), 0, Space},
		{"no colon", with("Foo\r\n", ""), 0, Name},
		{"no name", with(": x\r\n", ""), 0, Name},
		{"bracket in a name", with("X(: 1\r\n", ""), 0, Name},
		{"byte of UTF-8 in a name", with("X\xc3\xa4: 1\r\n", ""), 0, Name},
		{"NUL in a name", with("X\x00: 1\r\n", ""), 0, Control},
		{"NUL in a value", with("X: \x00\r\n", ""), 0, Control},
		{"vertical tab in a value", with("X: a\x0bb\r\n", ""), 0, Control},
		{"DEL in a value", with("X: \x7f\r\n", ""), 0, Control},
		{"form feed before chunked", with("Transfer-Encoding: \x0cchunked\r\n", "0\r\n\r\n"+hidden), 0, Control},

		{"length and encoding", with("Content-Length: 4\r\n"+chunked, "0\r\n\r\n"+hidden), 0, Both},
		{"encoding and length", with(chunked+"Content-Length: 4\r\n", "0\r\n\r\n"+hidden), 0, Both},
		{"two lengths", with("Content-Length: 3\r\nContent-Length: 4\r\n", "abcd"), 0, Repeated},
		{"two equal lengths", with("Content-Length: 3\r\nX: y\r\ncontent-length: 3\r\n", "abc"), 0, Repeated},
		{"list of lengths", with("Content-Length: 3, 3\r\n", "abc"), 0, Length},
		{"length with a plus", with("Content-Length: +3\r\n", "abc"), 0, Length},
		{"length with a minus", with("Content-Length: -3\r\n", "abc"), 0, Length},
		{"length in hex", with("Content-Length: 0x3\r\n", "abc"), 0, Length},
		{"two words of length", with("Content-Length: 3 0\r\n", "abc"), 0, Length},
		{"empty length", with("Content-Length: \r\n", hidden), 0, Length},
		{"length of 2^63", with("Content-Length: 9223372036854775808\r\n", ""), 0, Length},
		{"length of 2^64 + 3", with("Content-Length: 18446744073709551619\r\n", "abc"+hidden), 0, Length},
		{"two encodings", with(chunked+chunked, "0\r\n\r\n"), 0, Repeated},
		{"list of encodings", with("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 0, Encoding},
		{"chunked twice", with("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 0, Encoding},
		{"identity", with("Transfer-Encoding: identity\r\n", hidden), 0, Encoding},
		{"empty encoding", with("Transfer-Encoding:\r\n", hidden), 0, Encoding},
		{"half a word", with("Transfer-Encoding: chunk\r\n", hidden), 0, Encoding},
		{"more than the word", with("Transfer-Encoding: chunkedx\r\n", hidden), 0, Encoding},
		{"quoted", with("Transfer-Encoding: \"chunked\"\r\n", hidden), 0, Encoding},
		{"encoding in 1.0", "POST /a HTTP/1.0\r\nHost: h\r\n" + chunked + "\r\n0\r\n\r\n", 0, Encoding},

		{"two hosts", "GET /a HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 0, Repeated},
		{"two keys", with("Authorization: Bearer a\r\nauthorization: Bearer b\r\n", ""), 1, 0},
		{"two origins", with("Origin: http://h\r\nOrigin: http://x\r\n", ""), 0, Repeated},
		{"two types", with("Content-Type: text/plain\r\nContent-Type: application/json\r\n", ""), 0, Repeated},
		{"no host", "GET /a HTTP/1.1\r\nX: y\r\n\r\n" + hidden, 0, NoHost},
		{"no header", "GET /a HTTP/1.1\r\n\r\n" + hidden, 0, NoHost},
		{"no host of a tunnel", "CONNECT h:80 HTTP/1.1\r\n\r\n" + hidden, 0, NoHost},
		{"empty host", "GET /a HTTP/1.1\r\nHost:\r\n\r\n", 0, Host},
		{"two names of a host", "GET /a HTTP/1.1\r\nHost: a b\r\n\r\n", 0, Host},
		{"host with a user", "GET /a HTTP/1.1\r\nHost: a@b\r\n\r\n", 0, Host},
		{"host with a path", "GET /a HTTP/1.1\r\nHost: a/b\r\n\r\n", 0, Host},
		{"host with a quote", "GET /a HTTP/1.1\r\nHost: a\"\r\n\r\n", 0, Host},
		{"host with two ports", "GET /a HTTP/1.1\r\nHost: a:1:2\r\n\r\n", 0, Host},
		{"host with a big port", "GET /a HTTP/1.1\r\nHost: a:65536\r\n\r\n", 0, Host},
		{"port alone", "GET /a HTTP/1.1\r\nHost: :80\r\n\r\n", 0, Host},
		{"half an escape", "GET /a HTTP/1.1\r\nHost: a%2\r\n\r\n", 0, Host},
		{"open bracket", "GET /a HTTP/1.1\r\nHost: [::1\r\n\r\n", 0, Host},
		{"empty brackets", "GET /a HTTP/1.1\r\nHost: []\r\n\r\n", 0, Host},
		{"host in UTF-8", "GET /a HTTP/1.1\r\nHost: \xc3\xa4\r\n\r\n", 0, Host},
	}
}

// badBodies are requests whose body is refused. A handler gets to see the head, and an
// error of the body.
func badBodies() []hostile {
	head := with("Transfer-Encoding: chunked\r\n", "")
	return []hostile{
		{"LF after the size", head + "3\nabc\r\n0\r\n\r\n" + hidden, 0, BareLF},
		{"LF after the chunk", head + "3\r\nabc\n0\r\n\r\n" + hidden, 0, BareLF},
		{"LF after the last size", head + "0\n\r\n" + hidden, 0, BareLF},
		{"LF for the end", head + "0\r\n\n" + hidden, 0, BareLF},
		{"LF in an extension", head + "3;x\ny\r\nabc\r\n0\r\n\r\n" + hidden, 0, BareLF},
		{"CR in the size", head + "3\r4\r\nabc\r\n0\r\n\r\n" + hidden, 0, BareCR},
		{"CR in an extension", head + "3;x\ry\r\nabc\r\n0\r\n\r\n" + hidden, 0, BareCR},
		{"CR without LF after a chunk", head + "3\r\nabc\r0\r\n\r\n" + hidden, 0, BareCR},
		{"CR without LF at the end", head + "0\r\n\rX" + hidden, 0, BareCR},
		{"no size", head + "\r\nabc\r\n" + hidden, 0, Chunk},
		{"size in words", head + "three\r\nabc\r\n0\r\n\r\n" + hidden, 0, Chunk},
		{"size with 0x", head + "0x3\r\nabc\r\n0\r\n\r\n" + hidden, 0, Chunk},
		{"negative size", head + "-1\r\n" + hidden, 0, Chunk},
		{"space before the size", head + " 3\r\nabc\r\n0\r\n\r\n" + hidden, 0, Chunk},
		{"space after the size", head + "3 \r\nabc\r\n0\r\n\r\n" + hidden, 0, Chunk},
		{"NUL in an extension", head + "3;\x00\r\nabc\r\n0\r\n\r\n" + hidden, 0, Chunk},
		{"chunk shorter than its size", head + "5\r\nabc\r\n0\r\n\r\n" + hidden, 0, Chunk},
		{"chunk longer than its size", head + "2\r\nabc\r\n0\r\n\r\n" + hidden, 0, Chunk},
		{"size of 17 digits", head + "00000000000000003\r\nabc\r\n0\r\n\r\n" + hidden, 0, Size},
		{"size of 2^63", head + "8000000000000000\r\nabc" + hidden, 0, Size},
		{"size of 2^64 + 3", head + "10000000000000003\r\nabc\r\n0\r\n\r\n" + hidden, 0, Size},
		{"length after the body", head + "0\r\nContent-Length: 3\r\n\r\nabc" + hidden, 0, Trailer},
		{"key after the body", head + "0\r\nAuthorization: Bearer k\r\n\r\n" + hidden, 0, Trailer},
		{"fold after the body", head + "0\r\nX: a\r\n b\r\n\r\n" + hidden, 0, Fold},
		{"a request for a trailer", head + "0\r\n" + hidden, 0, Space},
	}
}
