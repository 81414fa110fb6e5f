package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/models"
)

// running is a node that a test talks to over loopback.
type running struct {
	*Node
	t    *testing.T
	url  string
	stop context.CancelFunc // begins the drain
}

// start runs a node until the test ends.
func start(t *testing.T, change func(*Config)) *running {
	t.Helper()
	cfg := Defaults()
	cfg.Listen = "127.0.0.1:0"
	cfg.DrainTimeout = 5 * time.Second
	if change != nil {
		change(&cfg)
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	group := pool.New().WithErrors()
	group.Go(func() error { return n.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case <-n.Ready():
	case <-time.After(20 * time.Second):
		t.Fatal("not ready")
	}
	return &running{n, t, "http://" + n.Addr().String(), cancel}
}

// ask is the body of a chat request.
type ask struct {
	Model       string           `json:"model"`
	Messages    []map[string]any `json:"messages"`
	MaxTokens   int              `json:"max_tokens"`
	Temperature *float64         `json:"temperature,omitempty"`
	TopP        *float64         `json:"top_p,omitempty"`
	Seed        *int             `json:"seed,omitempty"`
	Stream      bool             `json:"stream,omitempty"`
}

// answer is what a test compares: text, and which model wrote which run of tokens.
type answer struct {
	Text       string
	Finish     string
	Provenance string
	Tokens     map[string]int
	LargeShare float64
	Epoch      int
}

type completion struct {
	Choices []struct {
		Message struct{ Content string }
		Finish  string `json:"finish_reason"`
	}
	Trctl struct {
		Tokens     map[string]int
		LargeShare float64 `json:"large_share"`
		Provenance json.RawMessage
		Epoch      int
	}
}

func (r *running) post(ctx context.Context, path string, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// chat returns the answer to one request that is not streamed.
func (r *running) chat(a ask) (answer, error) {
	resp, err := r.post(context.Background(), "/v1/chat/completions", a)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	var c completion
	if err := json.Unmarshal(body, &c); err != nil || len(c.Choices) != 1 {
		return answer{}, fmt.Errorf("%s: %w", body, err)
	}
	return answer{
		Text: c.Choices[0].Message.Content, Finish: c.Choices[0].Finish, Provenance: string(c.Trctl.Provenance),
		Tokens: c.Trctl.Tokens, LargeShare: c.Trctl.LargeShare, Epoch: c.Trctl.Epoch,
	}, nil
}

// cut opens a stream, reads a number of events and goes away.
func (r *running) cut(a ask, events int) error {
	a.Stream = true
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	resp, err := r.post(ctx, "/v1/chat/completions", a)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for events > 0 && lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			events--
		}
	}
	return lines.Err()
}

// questions returns chat requests about the first n problems.
func questions(n int, model string, maxTokens int) []ask {
	var list []ask
	dec := json.NewDecoder(bytes.NewReader(models.Problems()))
	for range n {
		var p struct{ Question string }
		if dec.Decode(&p) != nil {
			break
		}
		list = append(list, ask{
			Model: model, MaxTokens: maxTokens,
			Messages: []map[string]any{{"role": "user", "content": p.Question}},
		})
	}
	return list
}

// busy sums the metrics that say what the replicas hold.
func (r *running) busy() (sum float64, lines string) {
	r.t.Helper()
	resp, err := http.Get(r.url + "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	found := 0
	scan := bufio.NewScanner(resp.Body)
	for scan.Scan() {
		name, value, _ := strings.Cut(scan.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		switch name {
		case "trctl_sequences_queued", "trctl_sequences_running", "trctl_sequences_parked", "trctl_kv_pages_held":
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				r.t.Fatal(err)
			}
			found++
			sum += v
			lines += scan.Text() + "\n"
		}
	}
	if found < 8 {
		r.t.Fatalf("%d metrics of replicas found", found)
	}
	return sum, lines
}

// awaitIdle waits until no replica holds a sequence or a page.
func (r *running) awaitIdle() {
	r.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		sum, lines := r.busy()
		if sum == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			r.t.Fatalf("not idle:\n%s", lines)
		}
	}
}

// refusal is the error object of an OpenAI response.
type refusal struct{ Message, Type, Param, Code string }

// refused posts a raw body and returns the status and the error.
func (r *running) refused(body string) (int, refusal) {
	r.t.Helper()
	resp, err := http.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var e struct{ Error refusal }
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, e.Error
}
