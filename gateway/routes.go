package gateway

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/internal/vllmnames"
)

// Paths that answer without a key.
const (
	pathHealthz = "/healthz"
	pathHealth  = "/health" // the name that benchmarks probe
	pathReadyz  = "/readyz"
)

// Paths that generate.
const (
	pathChat        = "/v1/chat/completions"
	pathCompletions = "/v1/completions"
)

// Paths of vLLM beside those of OpenAI.
const (
	pathTokenize   = "/tokenize"
	pathDetokenize = "/detokenize"
	pathVersion    = "/version"
)

// pathModels lists the models, and has each of them under it.
const pathModels = "/v1/models"

// routes builds the handler.
func (g *Gateway) routes() http.Handler {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = g.sendHTTPError
	// Before the router, so that no route can be reached around them.
	e.Pre(g.tidyPath, g.identify, g.record, g.recover, g.guardOrigin, g.authenticate)

	reads := []string{http.MethodGet, http.MethodHead}
	e.Match(reads, pathHealthz, g.healthz)
	e.Match(reads, pathHealth, g.healthz)
	e.Match(reads, pathReadyz, g.readyz)
	e.Match(reads, pathVersion, g.version)
	e.POST(pathChat, g.chat)
	e.POST(pathCompletions, g.completions)
	e.POST(pathTokenize, g.tokenize)
	e.POST(pathDetokenize, g.detokenize)
	e.Match(reads, pathModels, g.listModels)
	e.Match(reads, pathModels+"/*", g.getModel) // a name may hold slashes
	if g.cfg.ServeMetrics && g.cfg.Metrics != nil {
		e.Match(reads, "/metrics", echo.WrapHandler(promhttp.HandlerFor(g.cfg.Metrics, promhttp.HandlerOpts{})))
		e.Match(reads, vllmnames.Path, echo.WrapHandler(vllmnames.Handler(g.cfg.Metrics)))
	}
	g.paths = make(map[string]bool)
	for _, r := range e.Routes() {
		g.paths[r.Path] = true
	}
	return e
}

// sendHTTPError answers for errors that handlers return, and for paths and
// methods that do not exist.
func (g *Gateway) sendHTTPError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	var e *openai.Error
	var he *echo.HTTPError
	switch {
	case errors.As(err, &e):
	case errors.As(err, &he):
		e = &openai.Error{Status: he.Code, Type: openai.TypeInvalidRequest, Code: "bad_request", Message: http.StatusText(he.Code)}
		switch he.Code {
		case http.StatusNotFound:
			e = notFound(c.Request().URL.Path)
		case http.StatusMethodNotAllowed:
			e = methodNotAllowed(c.Response().Header().Get(echo.HeaderAllow))
		}
	default:
		e = publicError(err)
	}
	if c.Request().ContentLength != 0 {
		// What was not read of the body is read before the answer leaves.
		_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Now().Add(bodyGrace))
	}
	newClient(c.Response(), &g.cfg).sendError(e)
}

// healthz says that the process answers. It looks at nothing else.
func (g *Gateway) healthz(c echo.Context) error {
	return c.JSONBlob(http.StatusOK, []byte(`{"status":"ok"}`))
}

// readyz says whether new requests may be sent here.
func (g *Gateway) readyz(c echo.Context) error {
	if g.admission.isDraining() {
		return publicError(errDraining)
	}
	if g.cfg.Ready != nil {
		if err := g.cfg.Ready(); err != nil {
			return serverError(http.StatusServiceUnavailable, "not_ready", err.Error())
		}
	}
	return c.JSONBlob(http.StatusOK, []byte(`{"status":"ready"}`))
}

// listModels lists what is deployed, with what was acknowledged elsewhere before the call if
// that can be heard within a moment; else what is known.
func (g *Gateway) listModels(c echo.Context) error {
	if ctx := c.Request().Context(); g.current(ctx) != nil && ctx.Err() != nil {
		return endCause(ctx)
	}
	var models []openai.Model
	for d := range g.table.Load().All() {
		if outcomeOf(c).holder.mayAsk(d.Name) {
			models = append(models, model(d))
		}
	}
	return c.JSONBlob(http.StatusOK, openai.AppendModels(nil, models))
}

func (g *Gateway) getModel(c echo.Context) error {
	name, err := url.PathUnescape(strings.TrimPrefix(c.Param("*"), "/"))
	if err != nil {
		name = c.Param("*")
	}
	d, err := g.find(c.Request().Context(), name, outcomeOf(c).holder)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, openai.AppendModel(nil, model(d)))
}

func model(d *session.Served) openai.Model {
	return openai.Model{ID: d.Name, Created: d.Created.Unix(), MaxContext: d.MaxContext}
}
