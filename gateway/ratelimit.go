package gateway

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/quota"
)

// Headers that tell a client of its key's rates, as OpenAI names them.
const (
	headerLimitRequests     = "X-Ratelimit-Limit-Requests"
	headerLimitTokens       = "X-Ratelimit-Limit-Tokens"
	headerRemainingRequests = "X-Ratelimit-Remaining-Requests"
	headerRemainingTokens   = "X-Ratelimit-Remaining-Tokens"
	headerResetRequests     = "X-Ratelimit-Reset-Requests"
	headerResetTokens       = "X-Ratelimit-Reset-Tokens"
	// headerRetryAfterMs is Retry-After in milliseconds, which OpenAI's clients prefer.
	headerRetryAfterMs = "Retry-After-Ms"
)

// maxRetryAfter is the longest wait that all of OpenAI's clients obey, to the second.
// Earlier ones pass over a minute or more and come back within a second, twice.
const maxRetryAfter = 59 * time.Second

// setRates tells the rates of a holder that has some. What remains of them is not told:
// the gateway has a second's worth, and clients that slow down as the rest grows small
// would take that for all there is.
func setRates(h http.Header, holder *Holder) {
	if holder.Quota == nil {
		return
	}
	rates := holder.Quota.Rates()
	if rates.Requests > 0 {
		h.Set(headerLimitRequests, strconv.FormatInt(rates.Requests, 10))
	}
	if rates.Tokens > 0 {
		h.Set(headerLimitTokens, strconv.FormatInt(rates.Tokens, 10))
	}
}

// setRefusal tells which rates are used up, and when there is enough. It returns the
// refusal, the Retry-After of which goes with the error.
func setRefusal(h http.Header, r quota.Refusal) *openai.Error {
	reset := resetText(r.After)
	var used []string
	if r.Requests {
		h.Set(headerRemainingRequests, "0")
		h.Set(headerResetRequests, reset)
		used = append(used, "requests")
	}
	if r.Tokens {
		h.Set(headerRemainingTokens, "0")
		h.Set(headerResetTokens, reset)
		used = append(used, "tokens")
	}
	retry := retryAfter(r.After)
	h.Set(headerRetryAfterMs, strconv.FormatInt(ceil(retry, time.Millisecond), 10))
	what := "rate"
	if len(used) > 0 {
		what = strings.Join(used, " and ") + " of a minute"
	}
	return &openai.Error{
		Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, Code: "rate_limit_exceeded", RetryAfter: int(ceil(retry, time.Second)),
		Message: fmt.Sprintf("this API key has used up its %s; try again in %d s", what, max(1, ceil(r.After, time.Second))),
	}
}

// retryAfter is the wait that clients are told. One that is a little too long for some
// of them is told in two.
func retryAfter(wait time.Duration) time.Duration {
	if wait > maxRetryAfter && wait <= 2*maxRetryAfter {
		return maxRetryAfter
	}
	return max(time.Millisecond, wait)
}

// ceil is how many units a time has, rounded up.
func ceil(d, unit time.Duration) int64 { return int64((max(0, d) + unit - 1) / unit) }

// resetText writes a time as OpenAI does, "20ms", "1.5s" or "6m0s", rounded up to
// milliseconds.
func resetText(d time.Duration) string {
	return (time.Duration(ceil(d, time.Millisecond)) * time.Millisecond).String()
}
