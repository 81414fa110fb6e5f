package gateway

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/quota"
	"github.com/tokenrouter/tokenrouter/gateway/session"
)

// Keys knows who may use the API. It is safe for concurrent use, and answers
// within a moment.
type Keys interface {
	// Find returns the holder of a bearer key. Any error refuses the request, and
	// goes to the log alone. With ErrKeysUnknown the client may try again.
	Find(key string) (*Holder, error)
}

// Holder is who has a key, and what it may ask for.
type Holder struct {
	// ID names the key in logs and metrics. It is not secret.
	ID string
	// Salt keys the prefix cache: holders never see each other's cached prompts.
	Salt [sha256.Size]byte
	// Models are the names that it may ask for, Policies those of routing policies
	// that a request may name. Empty means all.
	Models, Policies []string
	// Concurrency bounds its answers in flight at this gateway; 0 means no bound.
	Concurrency int
	// Quota bounds its rates; nil means no bound.
	Quota Quota
}

// Quota bounds the requests and tokens that a key gets in a minute, over all gateways.
type Quota interface {
	// Rates are what the key may have. It asks nobody.
	Rates() quota.Rates
	// Reserve takes one request and up to tokens tokens, or says why not. The caller
	// must call settle with what was used.
	Reserve(ctx context.Context, tokens int64) (settle func(used int64), refused quota.Refusal, ok bool)
}

var (
	// ErrKey says that a key is not known.
	ErrKey = errors.New("gateway: the API key is not known")
	// ErrKeysUnknown says that the gateway does not know the keys yet.
	ErrKeysUnknown = errors.New("gateway: the API keys are not known yet")
)

// SaltOf derives the salt of a prefix cache from what identifies a key.
func SaltOf(key []byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte("prefix cache of key "), key...))
}

// maxKey bounds a key, in bytes.
const maxKey = 512

// holder is the holder of the one bearer key of a request.
func (g *Gateway) holder(h http.Header) (*Holder, error) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return nil, fmt.Errorf("%w: %d Authorization headers", ErrKey, len(values))
	}
	scheme, key, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "bearer") || key == "" || len(key) > maxKey {
		return nil, fmt.Errorf("%w: it is no bearer key", ErrKey)
	}
	return g.cfg.Keys.Find(key)
}

// mayAsk says that the holder may ask for a deployment. Everybody may where there
// are no keys.
func (h *Holder) mayAsk(deployment string) bool {
	return h == nil || len(h.Models) == 0 || slices.Contains(h.Models, deployment)
}

// check refuses a policy that the holder's key does not allow.
func (h *Holder) check(d *session.Served, o *openai.Options) error {
	if h == nil {
		return nil
	}
	if policy := d.PolicyOf(o.Routing); len(h.Policies) > 0 && !slices.Contains(h.Policies, policy) {
		return notAllowed("trctl.policy", "this API key may not use the policy %q; it may use: %s", policy, strings.Join(h.Policies, ", "))
	}
	return nil
}

func notAllowed(param, format string, args ...any) *openai.Error {
	return &openai.Error{
		Status: http.StatusForbidden, Type: openai.TypeInvalidRequest, Code: "key_not_allowed", Param: param,
		Message: fmt.Sprintf(format, args...),
	}
}

// reserve takes the rates of a request, and returns what gives back the unused part.
// If there are none left, the answer's headers say which.
func (h *Holder) reserve(c echo.Context, tokens int64) (settle func(used int64), err error) {
	if h == nil || h.Quota == nil {
		return func(int64) {}, nil
	}
	settle, refused, ok := h.Quota.Reserve(c.Request().Context(), tokens)
	if ok {
		return settle, nil
	}
	return nil, setRefusal(c.Response().Header(), refused)
}

// concurrency counts the answers in flight of each key that has a bound.
type concurrency struct {
	mu sync.Mutex
	by map[string]int
}

// acquire takes n places of a holder, or refuses. release may be called again.
func (c *concurrency) acquire(h *Holder, n int) (release func(), err error) {
	if h == nil || h.Concurrency == 0 {
		return func() {}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[h.ID]+n > h.Concurrency {
		return nil, &openai.Error{
			Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, Code: "concurrency_exceeded",
			Message: fmt.Sprintf("this API key may have %d answers in flight; try again", h.Concurrency),
		}
	}
	if c.by == nil {
		c.by = map[string]int{}
	}
	c.by[h.ID] += n
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.by[h.ID] -= n; c.by[h.ID] == 0 {
			delete(c.by, h.ID)
		}
	}), nil
}
