package gateway

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/openai"
)

// A body must arrive at this rate once the grace has passed.
const (
	bodyGrace = 5 * time.Second
	bodyRate  = 1 << 10 // bytes a second
)

// readBody reads a request's JSON body to its end, within limit and at a
// minimum rate. The end must be reached for the server to notice a client that
// leaves while the answer is computed.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *openai.Error) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, unsupportedMedia("the content encoding %q is not accepted; send the body as it is", enc)
	}
	if ct := r.Header.Get("Content-Type"); ct != "" {
		media, params, err := mime.ParseMediaType(ct)
		if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
			return nil, unsupportedMedia("the content type %q is not accepted; send application/json", ct)
		}
		if c := params["charset"]; c != "" && !strings.EqualFold(c, "utf-8") {
			return nil, unsupportedMedia("the charset %q is not accepted; send UTF-8", c)
		}
	}
	control := http.NewResponseController(w)
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	if r.ContentLength > limit {
		// A client that expects 100 asks before it sends, and of much more than the limit no end would be seen.
		if r.Header.Get("Expect") == "" && r.ContentLength <= limit+maxDiscard {
			discard(control, r.Body)
		}
		return nil, tooLarge()
	}
	body := http.MaxBytesReader(w, r.Body, limit)
	out := make([]byte, 0, min(max(r.ContentLength, 0), 64<<10)+512)
	for start := time.Now(); ; {
		_ = control.SetReadDeadline(start.Add(bodyGrace + time.Duration(len(out)/bodyRate)*time.Second))
		if len(out) == cap(out) {
			out = append(out, 0)[:len(out)]
		}
		n, err := body.Read(out[len(out):cap(out)])
		out = out[:len(out)+n]
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			bad := bodyError(err)
			if bad.Status == http.StatusRequestEntityTooLarge {
				discard(control, r.Body)
			}
			return nil, bad
		}
	}
}

// maxDiscard bounds what is read of a body that is too large, in bytes.
const maxDiscard = 16 << 20

// discard reads on for a while: clients that are cut off while they send a body report
// a broken connection instead of the answer.
func discard(control *http.ResponseController, body io.Reader) {
	_ = control.SetReadDeadline(time.Now().Add(bodyGrace))
	_, _ = io.CopyN(io.Discard, body, maxDiscard) // the answer is the same, however it ends
}

func bodyError(err error) *openai.Error {
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &openai.Error{Status: http.StatusRequestTimeout, Type: openai.TypeInvalidRequest, Code: "body_too_slow", Message: "the body arrived too slowly"}
	}
	return &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: openai.CodeInvalidJSON, Message: "the body could not be read"}
}

func tooLarge() *openai.Error {
	return &openai.Error{
		Status: http.StatusRequestEntityTooLarge, Type: openai.TypeInvalidRequest,
		Code: openai.CodeTooLarge, Message: "the body is over the size limit",
	}
}

func unsupportedMedia(format, value string) *openai.Error {
	return &openai.Error{
		Status: http.StatusUnsupportedMediaType, Type: openai.TypeInvalidRequest, Code: "unsupported_media_type",
		Message: strings.Replace(format, "%q", `"`+openai.Excerpt(value)+`"`, 1),
	}
}
