package gateway

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/tokenrouter/tokenrouter/api/openai"
)

// tidyPath lets the router see one path where clients write several: with slashes at
// the end, or doubled where a base address ends in one. It comes before everything
// that looks at a path. A redirect would not do: it turns a POST into a GET.
func (g *Gateway) tidyPath(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		u := c.Request().URL
		u.Path, u.RawPath = tidy(u.Path), tidy(u.RawPath)
		return next(c)
	}
}

// tidy makes one slash of several, and drops those at the end of all but "/".
func tidy(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	return path
}

// notFound says what the client may have meant: a base address with too few or too
// many parts ends in a path that exists.
func notFound(path string) *openai.Error {
	e := &openai.Error{Status: http.StatusNotFound, Type: openai.TypeInvalidRequest, Code: "not_found"}
	for _, known := range []string{pathChat, pathCompletions, pathModels} {
		if strings.HasSuffix(path, strings.TrimPrefix(known, "/v1")) {
			e.Message = "there is no such path; did you mean " + known + "?"
			return e
		}
	}
	e.Message = "there is no such path; this server has " + pathChat + ", " + pathCompletions + " and " + pathModels
	return e
}

// methodNotAllowed names the methods that the router has found for the path.
func methodNotAllowed(allow string) *openai.Error {
	e := &openai.Error{
		Status: http.StatusMethodNotAllowed, Type: openai.TypeInvalidRequest, Code: "method_not_allowed",
		Message: "this path does not answer to that method",
	}
	if allow != "" {
		e.Message += ", but to " + allow
	}
	return e
}
