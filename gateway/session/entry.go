package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

// Entry is one replica of a deployment's entry model.
type Entry interface {
	// Name is unique among the entries of a deployment.
	Name() string
	// Generate submits a request and returns once it was admitted or refused. A
	// refusal is a *generate.Error; any other error means that the replica
	// could not be reached or broke the protocol. The stream ends when ctx does.
	// Generate must not keep r.
	//
	// Every stream starts with EventAdmitted, with the prompt's ids unless
	// r.Resume has them already. The first position of a resumed stream is
	// len(r.Resume.Tokens), or an earlier one if it repeats the same tokens.
	Generate(ctx context.Context, r *generate.Request) (Stream, error)
}

// Loaded is an Entry that knows how busy it is besides what its user has there.
type Loaded interface {
	Entry
	// Others is about how many requests others have at the entry, by facts that may be a
	// little old. It must be quick.
	Others() int64
}

// Stream is the events of one admitted request, in order, from one entry.
type Stream interface {
	// Next blocks for the next event, which is the caller's to keep. After
	// EventFinish or EventError no more events come. An error (io.EOF too)
	// before that means that the entry was lost.
	Next() (*generate.Event, error)
	// Close tells the entry to drop the request if it has not ended. It may be
	// called more than once, but not during Next.
	Close() error
}

// ErrProtocol says that an entry's answer was not what the protocol allows.
var ErrProtocol = errors.New("session: entry broke the protocol")

// entryClient reaches an entry over HTTP.
type entryClient struct {
	name string
	url  string
	rt   http.RoundTripper
}

// NewEntryClient returns an Entry that speaks to baseURL (scheme and host)
// through rt, which is meant to be a tuned HTTP/2 transport: closing a stream,
// or ending its context, then resets that stream alone.
func NewEntryClient(name string, rt http.RoundTripper, baseURL string) Entry {
	return &entryClient{name: name, url: strings.TrimSuffix(baseURL, "/") + generate.Path, rt: rt}
}

func (c *entryClient) Name() string { return c.name }

func (c *entryClient) Generate(ctx context.Context, r *generate.Request) (Stream, error) {
	body, err := generate.EncodeRequest(r)
	if err != nil {
		return nil, &generate.Error{Code: generate.CodeInvalid, Message: "the request is too large to be served"}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("request to entry %s: %w", c.name, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", generate.Accept())
	resp, err := c.rt.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("send to entry %s: %w", c.name, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()
		return nil, c.refusal(resp)
	}
	if err := generate.CheckContentType(resp.Header.Get("Content-Type")); err != nil {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%w: entry %s: %w", ErrProtocol, c.name, err)
	}
	return &clientStream{body: resp.Body, r: generate.NewReader(resp.Body)}, nil
}

// refusal turns an answer other than 200 into the entry's own error, or into a
// protocol error if it has none.
func (c *entryClient) refusal(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, generate.MaxErrorBytes))
	if err != nil {
		return fmt.Errorf("read refusal of entry %s: %w", c.name, err)
	}
	refused := new(generate.Error)
	if err := json.Unmarshal(body, refused); err != nil || refused.Code == "" {
		return fmt.Errorf("%w: %s sent status %d without an error", ErrProtocol, c.name, resp.StatusCode)
	}
	if refused.Code == generate.CodeVersion {
		return fmt.Errorf("%w: entry %s refuses: %.256s", ErrProtocol, c.name, refused.Message)
	}
	return refused
}

// clientStream reads events from a response body.
type clientStream struct {
	body io.Closer
	r    *generate.Reader
}

func (s *clientStream) Next() (*generate.Event, error) { return s.r.Next() }

func (s *clientStream) Close() error { return s.body.Close() }
