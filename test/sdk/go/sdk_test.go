package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// routing is the server's extension object.
type routing struct {
	Model      string         `json:"model"`
	Models     []string       `json:"models"`
	Tokens     map[string]int `json:"tokens"`
	Provenance [][2]any       `json:"provenance"`
	Ignored    []string       `json:"ignored"`
}

func newClient(t *testing.T) openai.Client {
	t.Helper()
	url := os.Getenv("TRCTL_URL")
	if url == "" {
		t.Skip("TRCTL_URL names no server")
	}
	return openai.NewClient(option.WithBaseURL(strings.TrimRight(url, "/")+"/v1/"), option.WithAPIKey("not-needed"), option.WithMaxRetries(0))
}

func question(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:       "tiny",
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
		MaxTokens:   openai.Int(600),
		Temperature: openai.Float(0),
	}
}

// routingOf decodes the extension object; the zero value when there is none.
func routingOf(t *testing.T, raw string) routing {
	t.Helper()
	var r struct{ Trctl routing }
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		t.Fatal(err)
	}
	return r.Trctl
}

func TestModels(t *testing.T) {
	client := newClient(t)
	page, err := client.Models.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, m := range page.Data {
		served[m.ID] = true
	}
	if !served["tiny"] || !served["tiny-s"] || !served["tiny-l"] {
		t.Errorf("served: %v", served)
	}
}

func TestStreamEqualsWhole(t *testing.T) {
	client := newClient(t)
	whole, err := client.Chat.Completions.New(t.Context(), question("What is 12 * 34?"))
	if err != nil {
		t.Fatal(err)
	}
	params := question("What is 12 * 34?")
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	defer stream.Close()
	var sum openai.ChatCompletionAccumulator
	tokens := 0
	for stream.Next() {
		chunk := stream.Current()
		if !sum.AddChunk(chunk) {
			t.Fatal("the accumulator refused a chunk")
		}
		if routingOf(t, chunk.RawJSON()).Model != "" {
			tokens++
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if got, want := sum.Choices[0].Message.Content, whole.Choices[0].Message.Content; got != want {
		t.Errorf("stream %q, whole %q", got, want)
	}
	// The token that ends the answer has no text: it comes with the finish.
	if sum.Usage.CompletionTokens != whole.Usage.CompletionTokens || int64(tokens)+1 != sum.Usage.CompletionTokens {
		t.Errorf("tokens: %d streamed, %d and %d counted", tokens, sum.Usage.CompletionTokens, whole.Usage.CompletionTokens)
	}
	if sum.Choices[0].FinishReason != "stop" {
		t.Errorf("finish reason %q", sum.Choices[0].FinishReason)
	}
}

func TestCompletions(t *testing.T) {
	client := newClient(t)
	got, err := client.Completions.New(t.Context(), openai.CompletionNewParams{
		Model:       "tiny-l",
		Prompt:      openai.CompletionNewParamsPromptUnion{OfString: openai.String("The answer is")},
		MaxTokens:   openai.Int(5),
		Temperature: openai.Float(0),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Usage.CompletionTokens > 5 || len(got.Choices) != 1 {
		t.Errorf("%d tokens in %d choices", got.Usage.CompletionTokens, len(got.Choices))
	}
}

func TestErrors(t *testing.T) {
	client := newClient(t)
	params := question("x")
	params.Model = "no-such-model"
	_, err := client.Chat.Completions.New(t.Context(), params)
	var refused *openai.Error
	if !errors.As(err, &refused) || refused.StatusCode != 404 || refused.Code != "model_not_found" {
		t.Errorf("unknown model: %v", err)
	}
	params = question("x")
	params.MaxTokens = openai.Int(-1)
	_, err = client.Chat.Completions.New(t.Context(), params)
	if !errors.As(err, &refused) || refused.StatusCode != 400 || refused.Param != "max_tokens" {
		t.Errorf("negative bound: %v", err)
	}
}

func TestAbortAndExtraFields(t *testing.T) {
	client := newClient(t)
	for range 8 {
		ctx, cancel := context.WithCancel(t.Context())
		stream := client.Chat.Completions.NewStreaming(ctx, question("What is 12 * 34 + 56 * 78?"))
		if !stream.Next() {
			t.Errorf("no chunk: %v", stream.Err())
		}
		cancel()
		stream.Close()
	}
	got, err := client.Chat.Completions.New(t.Context(), question("What is 2 + 3?"), option.WithJSONSet("some_new_field", 1))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got.Choices[0].Message.Content, "The answer is 5") {
		t.Errorf("answer %q", got.Choices[0].Message.Content)
	}
	if r := routingOf(t, got.RawJSON()); len(r.Ignored) != 1 || r.Ignored[0] != "some_new_field" {
		t.Errorf("ignored fields: %v", r.Ignored)
	}
}

// TestDeterminism: 16 seeded requests at once give the texts, and the authors,
// of the same requests one by one.
func TestDeterminism(t *testing.T) {
	client := newClient(t)
	const requests = 16
	ask := func(i int) (string, routing, error) {
		params := question(fmt.Sprintf("What is %d + %d * %d?", 3*i+2, 5*i+1, 7*i+3))
		params.Temperature = openai.Float(0.8)
		params.Seed = openai.Int(int64(2000 + i))
		got, err := client.Chat.Completions.New(t.Context(), params)
		if err != nil {
			return "", routing{}, err
		}
		r := routingOf(t, got.RawJSON())
		return got.Choices[0].Message.Content + fmt.Sprint(r.Provenance), r, nil
	}
	var oneByOne, atOnce [requests]string
	written := map[string]int{}
	for i := range requests {
		text, r, err := ask(i)
		if err != nil {
			t.Fatal(err)
		}
		oneByOne[i] = text
		for model, n := range r.Tokens {
			written[model] += n
		}
	}
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			text, _, err := ask(i)
			if err != nil {
				t.Error(err)
			}
			atOnce[i] = text
		})
	}
	all.Wait()
	for i := range requests {
		if atOnce[i] != oneByOne[i] {
			t.Errorf("request %d\none by one: %q\nat once:    %q", i, oneByOne[i], atOnce[i])
		}
	}
	if s, l := written["tiny-s"], written["tiny-l"]; 20*min(s, l) < s+l {
		t.Errorf("the cell proves little: %d tokens by tiny-s, %d by tiny-l", s, l)
	}
}
