package gateway

import (
	"net/http"
	"strconv"

	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/internal/http1"
)

// refuse counts and logs a request that no handler gets to see, and makes its answer.
func (g *Gateway) refuse(r http1.Refusal) []byte {
	g.metrics.requests.WithLabelValues("other", strconv.Itoa(r.Status)).Inc()
	g.cfg.Logger.Info("request refused", "remote", r.Remote.String(), "status", r.Status, "err", r.Why)
	e := &openai.Error{Status: r.Status, Type: openai.TypeInvalidRequest, Code: "malformed_request", Message: r.Why}
	if r.Status == http.StatusRequestHeaderFieldsTooLarge {
		e.Code, e.Message = "headers_too_large", "the headers are over the size limit"
	}
	return e.AppendJSON(nil)
}
