package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/tokenrouter/tokenrouter/api/openai"
)

// maxPreflight bounds the header names that a preflight may ask for, in bytes.
const maxPreflight = 2 << 10

// exposedHeaders are those that a page of another origin may read.
const exposedHeaders = headerRequestID + ", Retry-After, " + headerRetryAfterMs + ", " +
	headerLimitRequests + ", " + headerRemainingRequests + ", " + headerResetRequests + ", " +
	headerLimitTokens + ", " + headerRemainingTokens + ", " + headerResetTokens

// guardOrigin keeps foreign web pages out. A browser on the machine can reach a
// server on loopback for any page, so two things are checked: the Host header of
// a request over loopback must name loopback (a page whose name was rebound to
// 127.0.0.1 has its own), and the Origin header, which browsers always send with
// what a page does, must be the gateway's own or an allowed one.
//
// It also answers preflights. It runs before keys are checked, because browsers
// send preflights without them.
func (g *Gateway) guardOrigin(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if overLoopback(r) && !g.hostAllowed(r.Host) {
			return forbidden("host_not_allowed", "this server is not known under the name in the Host header; its --allow-hosts can add it")
		}
		origin := r.Header.Get(echo.HeaderOrigin)
		if origin == "" {
			return next(c)
		}
		h := c.Response().Header()
		h.Add(echo.HeaderVary, echo.HeaderOrigin)
		if !ownOrigin(origin, r.Host) && !g.originAllowed(origin) {
			return forbidden("origin_not_allowed", "web pages of this origin may not use the API; the server's --allow-origins can add it")
		}
		h.Set(echo.HeaderAccessControlAllowOrigin, origin)
		h.Set(echo.HeaderAccessControlExposeHeaders, exposedHeaders)
		if r.Method != http.MethodOptions || r.Header.Get(echo.HeaderAccessControlRequestMethod) == "" {
			return next(c)
		}
		h.Set(echo.HeaderAccessControlAllowMethods, "GET, HEAD, POST")
		if names := r.Header.Get(echo.HeaderAccessControlRequestHeaders); len(names) <= maxPreflight && saneNames(names) {
			h.Set(echo.HeaderAccessControlAllowHeaders, names)
		}
		h.Set(echo.HeaderAccessControlMaxAge, "600")
		return c.NoContent(http.StatusNoContent)
	}
}

func forbidden(code, message string) error {
	return &openai.Error{Status: http.StatusForbidden, Type: openai.TypeInvalidRequest, Code: code, Message: message}
}

// overLoopback reports whether a request came in through a loopback address.
func overLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// hostAllowed reports whether a Host header may be used over loopback. An empty
// one is HTTP/1.0, which browsers do not speak.
func (g *Gateway) hostAllowed(host string) bool {
	if host == "" {
		return true
	}
	name := hostName(host)
	if strings.EqualFold(name, "localhost") || strings.HasSuffix(strings.ToLower(name), ".localhost") {
		return true
	}
	if ip, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil && ip.IsLoopback() {
		return true
	}
	return slices.ContainsFunc(g.cfg.AllowHosts, func(h string) bool { return strings.EqualFold(h, name) })
}

// hostName cuts the port off.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// ownOrigin reports whether a page came from the address that it now asks.
func ownOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

func (g *Gateway) originAllowed(origin string) bool {
	return slices.ContainsFunc(g.cfg.AllowOrigins, func(o string) bool { return o == "*" || strings.EqualFold(o, origin) })
}

// ValidOrigin accepts what a browser can send as an origin, and "*".
func ValidOrigin(origin string) bool {
	if origin == "*" || origin == "null" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Scheme != "" && u.Host != "" && u.Path == "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

// saneNames accepts a list of header names.
func saneNames(list string) bool {
	for _, c := range []byte(list) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == ',', c == ' ':
		default:
			return false
		}
	}
	return true
}
