package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// DefaultEndpoint is the public hub.
const DefaultEndpoint = "https://huggingface.co"

const maxRedirects = 3

var (
	// ErrNotFound says that the hub has no such model, revision or file, or hides it.
	ErrNotFound = errors.New("hub: not found")
	// ErrDenied says that the hub wants a token, or that the token may not read the model.
	ErrDenied = errors.New("hub: access denied")
	// ErrHost says that a host or an address is not one that may be reached.
	ErrHost = errors.New("hub: host is not allowed")
	// ErrDigest says that a file is not what the hub said it is.
	ErrDigest = errors.New("hub: wrong digest")
	// ErrProtocol says that an answer is not what the protocol has.
	ErrProtocol = errors.New("hub: unexpected answer")
	// ErrFormat says that a model has no weights in safetensors.
	ErrFormat = errors.New("hub: no safetensors")
)

// statusError is an answer that may be worth another try.
type statusError struct {
	status int
	after  time.Duration // that the hub asks to wait
}

func (e *statusError) Error() string { return fmt.Sprintf("hub: status %d", e.status) }

// Config says where from and how.
type Config struct {
	Endpoint string // base URL [DefaultEndpoint]
	Token    string // bearer token, sent to the endpoint's host alone
	// Hosts may be redirected to besides the endpoint's own; ".example.org" stands
	// for all below it. For the public hub those of its storage are added.
	Hosts []string
	// AllowPrivate allows plain HTTP and addresses that are loopback, link-local or private.
	AllowPrivate bool
	Files        int   // files at a time [4]
	Ranges       int   // ranges of a file at a time [4]
	RangeBytes   int64 // of one range [64 MiB]
	Tries        int   // for each range [5]
	// Backoff is the wait before try n (from 1) after a fault [exponential, to 30 s].
	Backoff func(n int) time.Duration
	// Progress is told how much of a file is there; it is called by several goroutines.
	Progress func(file string, done, total int64)
}

// Client downloads from one hub.
type Client struct {
	cfg  Config
	base *url.URL
	http *http.Client
}

// New checks the configuration.
func New(cfg Config) (*Client, error) {
	if cfg.Endpoint == "" {
		cfg.Endpoint = DefaultEndpoint
	}
	base, err := url.Parse(strings.TrimSuffix(cfg.Endpoint, "/"))
	if err != nil {
		return nil, fmt.Errorf("hub: endpoint: %w", err)
	}
	if base.Host == "" || base.User != nil || base.Scheme != "https" && !(base.Scheme == "http" && cfg.AllowPrivate) {
		return nil, fmt.Errorf("hub: endpoint: expected an https URL, found %q", cfg.Endpoint)
	}
	if strings.ContainsAny(cfg.Token, "\r\n\x00 ") {
		return nil, errors.New("hub: the token has a space or a line end")
	}
	if cfg.Endpoint == DefaultEndpoint {
		cfg.Hosts = append(slices.Clone(cfg.Hosts), ".huggingface.co", ".hf.co")
	}
	defaults := func(v *int, n int) {
		if *v <= 0 {
			*v = n
		}
	}
	defaults(&cfg.Files, 4)
	defaults(&cfg.Ranges, 4)
	defaults(&cfg.Tries, 5)
	if cfg.RangeBytes <= 0 {
		cfg.RangeBytes = 64 << 20
	}
	if cfg.Backoff == nil {
		cfg.Backoff = func(n int) time.Duration { return min(time.Second<<(n-1), 30*time.Second) }
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string, int64, int64) {}
	}
	c := &Client{cfg: cfg, base: base}
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: c.control}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: cfg.Files * cfg.Ranges, IdleConnTimeout: time.Minute, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// control refuses an address when it is dialled, whatever name led to it.
func (c *Client) control(_, address string, _ syscall.RawConn) error {
	if c.cfg.AllowPrivate {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return err
	}
	if !public(ip) {
		return fmt.Errorf("%w: the address %s", ErrHost, ip)
	}
	return nil
}

// public reports whether an address is one of the open internet.
func public(ip netip.Addr) bool {
	ip = ip.Unmap()
	shared := netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64}), 10)
	translated := netip.MustParsePrefix("64:ff9b::/96")
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !shared.Contains(ip) && !translated.Contains(ip) && ip.Zone() == ""
}

// mayVisit reports whether a redirect to u is followed.
func (c *Client) mayVisit(u *url.URL) error {
	if u.Scheme != "https" && !(u.Scheme == "http" && c.cfg.AllowPrivate) || u.User != nil {
		return fmt.Errorf("%w: %s is no https URL", ErrHost, u.Redacted())
	}
	host := strings.ToLower(u.Hostname())
	if u.Host == c.base.Host {
		return nil
	}
	for _, allowed := range c.cfg.Hosts {
		allowed = strings.ToLower(allowed)
		if host == allowed || u.Host == allowed || strings.HasPrefix(allowed, ".") && strings.HasSuffix(host, allowed) {
			return nil
		}
	}
	return fmt.Errorf("%w: redirected to %s", ErrHost, u.Host)
}

// get sends a request to an escaped path of the hub, with its query, and follows redirects. The caller closes
// the body. header may be nil.
func (c *Client) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	ref, err := url.Parse(path)
	if err != nil {
		return nil, err
	}
	u := *c.base
	u.Path, u.RawPath, u.RawQuery = c.base.Path+ref.Path, c.base.EscapedPath()+ref.EscapedPath(), ref.RawQuery
	next := &u
	for hop := 0; ; hop++ {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, next.String(), nil)
		if err != nil {
			return nil, err
		}
		for k, v := range header {
			req.Header[k] = v
		}
		req.Header.Set("User-Agent", "trctl")
		if c.cfg.Token != "" && next.Host == c.base.Host && next.Scheme == c.base.Scheme {
			req.Header.Set("Authorization", "Bearer "+c.cfg.Token)
		}
		resp, err := c.http.Do(req)
		if err != nil {
			return nil, scrubbed(err)
		}
		switch resp.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		default:
			return c.checked(resp, path)
		}
		location, err := resp.Location()
		drain(resp)
		if err != nil {
			return nil, fmt.Errorf("%w: a redirect without a place", ErrProtocol)
		}
		if hop == maxRedirects {
			return nil, fmt.Errorf("%w: more than %d redirects", ErrProtocol, maxRedirects)
		}
		if err := c.mayVisit(location); err != nil {
			return nil, err
		}
		next = location
	}
}

// scrubbed takes the URL, which may carry a signature, out of an error.
func scrubbed(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return fmt.Errorf("hub: %w", u.Err)
	}
	return err
}

// checked turns an answer that is none into an error.
func (c *Client) checked(resp *http.Response, path string) (*http.Response, error) {
	switch s := resp.StatusCode; {
	case s == http.StatusOK || s == http.StatusPartialContent:
		return resp, nil
	case s == http.StatusNotFound:
		drain(resp)
		return nil, fmt.Errorf("%w: %s", ErrNotFound, path)
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		reason := resp.Header.Get("X-Error-Message")
		if len(reason) > 200 || strings.ContainsFunc(reason, func(r rune) bool { return r < ' ' }) {
			reason = ""
		}
		drain(resp)
		hint := "give a token by --token-file or HF_TOKEN, and accept the model's terms on its page if it has any"
		return nil, fmt.Errorf("%w: status %d; %s (%s)", ErrDenied, s, hint, reason)
	case s == http.StatusTooManyRequests || s >= 500:
		var after time.Duration
		if n, err := time.ParseDuration(resp.Header.Get("Retry-After") + "s"); err == nil {
			after = min(max(n, 0), time.Minute)
		}
		drain(resp)
		return nil, &statusError{s, after}
	default:
		drain(resp)
		return nil, fmt.Errorf("%w: status %d for %s", ErrProtocol, s, path)
	}
}

func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	resp.Body.Close()
}

// retry calls f until it succeeds, fails for good, or has failed too often. gained
// reports whether the last call got further, which makes the count start again.
func (c *Client) retry(ctx context.Context, gained func() bool, f func() error) error {
	for n := 1; ; n++ {
		err := f()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		for _, final := range []error{ErrNotFound, ErrDenied, ErrHost, ErrProtocol, ErrDigest, errDisk} {
			if errors.Is(err, final) {
				return err
			}
		}
		if gained() {
			n = 1
		}
		if n >= c.cfg.Tries {
			return fmt.Errorf("%w (after %d tries)", err, n)
		}
		wait := c.cfg.Backoff(n)
		var status *statusError
		if errors.As(err, &status) {
			wait = max(wait, status.after)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}
