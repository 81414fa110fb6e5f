package gateway

import (
	"net/http"
	"strconv"
	"time"

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
)

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

// setRefusal tells which rates are used up, and when to come back. It goes with
// Retry-After, which is the same time in whole seconds.
func setRefusal(h http.Header, r quota.Refusal) {
	reset := resetText(r.After)
	if r.Requests {
		h.Set(headerRemainingRequests, "0")
		h.Set(headerResetRequests, reset)
	}
	if r.Tokens {
		h.Set(headerRemainingTokens, "0")
		h.Set(headerResetTokens, reset)
	}
}

// resetText writes a time as OpenAI does, "20ms", "1.5s" or "6m0s", rounded up to
// milliseconds.
func resetText(d time.Duration) string {
	return ((max(0, d) + time.Millisecond - 1) / time.Millisecond * time.Millisecond).String()
}
