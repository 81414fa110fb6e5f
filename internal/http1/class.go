package http1

// Sets of bytes from 0 to 63 and from 64 to 127, a bit each.
const (
	digits  = (1<<10 - 1) << '0'
	letters = (1<<26-1)<<('A'-64) | (1<<26-1)<<('a'-64)

	// tchar of RFC 9110, section 5.6.2.
	tokenLow  = digits | 1<<'!' | 1<<'#' | 1<<'$' | 1<<'%' | 1<<'&' | 1<<'\'' | 1<<'*' | 1<<'+' | 1<<'-' | 1<<'.'
	tokenHigh = letters | 1<<('^'-64) | 1<<('_'-64) | 1<<('`'-64) | 1<<('|'-64) | 1<<('~'-64)

	// unreserved and sub-delims of RFC 3986, section 2.
	unreservedLow  = digits | 1<<'-' | 1<<'.'
	unreservedHigh = letters | 1<<('_'-64) | 1<<('~'-64)
	hostLow        = unreservedLow | 1<<'!' | 1<<'$' | 1<<'&' | 1<<'\'' | 1<<'(' | 1<<')' | 1<<'*' | 1<<'+' | 1<<',' | 1<<';' | 1<<'='
)

func in(c byte, low, high uint64) bool {
	return c < 64 && low>>c&1 != 0 || c-64 < 64 && high>>(c-64)&1 != 0
}

func isToken(c byte) bool      { return in(c, tokenLow, tokenHigh) }
func isUnreserved(c byte) bool { return in(c, unreservedLow, unreservedHigh) }
func isHost(c byte) bool       { return in(c, hostLow, unreservedHigh) }
func isDigit(c byte) bool      { return c-'0' < 10 }
func isControl(c byte) bool    { return c < ' ' && c != '\t' || c == 0x7f }

// isTarget accepts what a request's target may have, and bytes above 127, which
// net/http takes for part of a path.
func isTarget(c byte) bool { return c > ' ' && c != 0x7f }

// isText accepts what a header's value may have, spaces included.
func isText(c byte) bool { return !isControl(c) }

func lower(c byte) byte {
	if c-'A' < 26 {
		c += 'a' - 'A'
	}
	return c
}

// hex is the value of a hexadecimal digit.
func hex(c byte) (byte, bool) {
	switch c = lower(c); {
	case isDigit(c):
		return c - '0', true
	case c-'a' < 6:
		return c - 'a' + 10, true
	}
	return 0, false
}
