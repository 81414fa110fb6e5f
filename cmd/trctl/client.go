package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/routing"
)

// Bounds on what a server may send.
const (
	maxReplyBytes = 64 << 20
	maxEventBytes = 1 << 20
)

// client talks to one OpenAI-compatible server.
type client struct {
	// base is the server's address without /v1 and without a slash at the end.
	base string
	http *http.Client
}

func newClient(url string) *client {
	base := strings.TrimSuffix(strings.TrimRight(url, "/"), "/v1")
	return &client{base: base, http: &http.Client{}}
}

// message is one turn of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatRequest is the body of a chat completion call.
type chatRequest struct {
	Model       string    `json:"model"`
	Messages    []message `json:"messages"`
	MaxTokens   int       `json:"max_tokens,omitempty"`
	Temperature *float64  `json:"temperature,omitempty"`
	Seed        *int64    `json:"seed,omitempty"`
	Stream      bool      `json:"stream,omitempty"`
	// Routing is what the request wants of the server's routing; nil for nothing.
	Routing *routing.Override `json:"trctl,omitempty"`
}

// routed is the server's extension object: who wrote what. Policy and the
// fields after it come with the end of an answer.
type routed struct {
	// Model wrote the tokens of this chunk.
	Model string `json:"model"`

	Policy string `json:"policy"`
	// Models are in the deployment's order, the entry model first.
	Models     []string       `json:"models"`
	Tokens     map[string]int `json:"tokens"`
	LargeShare float64        `json:"large_share"`
	Provenance []span         `json:"provenance"`
}

// delta is a piece of an answer.
type delta struct {
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content"`
}

// reply is a chat completion, or one chunk of it.
type reply struct {
	Model   string `json:"model"`
	Choices []struct {
		Message delta   `json:"message"`
		Delta   delta   `json:"delta"`
		Finish  *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Routing *routed   `json:"trctl"`
	Error   *apiError `json:"error"`
}

// apiError is the error object of the OpenAI API.
type apiError struct {
	// Status is the HTTP status, 0 for an error inside a stream.
	Status  int    `json:"-"`
	Message string `json:"message"`
	Code    string `json:"code"`
	Param   string `json:"param"`
}

func (e *apiError) Error() string {
	var b strings.Builder
	b.WriteString("the server refused: ")
	b.WriteString(e.Message)
	if e.Param != "" {
		fmt.Fprintf(&b, " (parameter %s)", e.Param)
	}
	if e.Status != 0 {
		fmt.Fprintf(&b, " [%d]", e.Status)
	}
	return b.String()
}

// models lists what the server serves.
func (c *client) models(ctx context.Context) ([]string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := c.call(ctx, http.MethodGet, "/v1/models", nil, &list); err != nil {
		return nil, err
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names, nil
}

// pick returns name, or the first model of the server when name is empty.
func (c *client) pick(ctx context.Context, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	names, err := c.models(ctx)
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", &serverError{errors.New("the server lists no models")}
	}
	return names[0], nil
}

// complete asks for one whole answer.
func (c *client) complete(ctx context.Context, req chatRequest) (*reply, error) {
	req.Stream = false
	var r reply
	if err := c.call(ctx, http.MethodPost, "/v1/chat/completions", req, &r); err != nil {
		return nil, err
	}
	if len(r.Choices) == 0 {
		return nil, &serverError{errors.New("the answer has no choices")}
	}
	return &r, nil
}

// stream asks for an answer in pieces and calls each for every one of them.
func (c *client) stream(ctx context.Context, req chatRequest, each func(*reply) error) error {
	req.Stream = true
	resp, err := c.do(ctx, http.MethodPost, "/v1/chat/completions", req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEventBytes)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue // blank lines and comments
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			return nil
		}
		var r reply
		if err := json.Unmarshal(data, &r); err != nil {
			return &serverError{fmt.Errorf("read an event of the stream: %w", err)}
		}
		if r.Error != nil {
			return &serverError{r.Error}
		}
		if err := each(&r); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return transportError(ctx, err)
	}
	return &serverError{fmt.Errorf("the stream ended without its end mark: %w", io.ErrUnexpectedEOF)}
}

// call does one exchange of JSON documents.
func (c *client) call(ctx context.Context, method, path string, body, out any) error {
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReplyBytes)).Decode(out); err != nil {
		return transportError(ctx, fmt.Errorf("read the answer of %s: %w", path, err))
	}
	return nil
}

// do sends a request and turns every status but 200 into an error. The caller
// closes the body.
func (c *client) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var payload io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		payload = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, payload)
	if err != nil {
		return nil, usagef("the server's address: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, transportError(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxEventBytes))
	if err != nil {
		return nil, transportError(ctx, fmt.Errorf("read the answer of %s, %s: %w", path, resp.Status, err))
	}
	var r reply
	if err := json.Unmarshal(text, &r); err != nil || r.Error == nil {
		return nil, &serverError{fmt.Errorf("%s answered %s", path, resp.Status)}
	}
	r.Error.Status = resp.StatusCode
	return nil, &serverError{r.Error}
}

// transportError is a failure of the connection, unless the caller gave up.
func transportError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &serverError{err}
}
