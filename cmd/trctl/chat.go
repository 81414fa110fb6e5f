package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/colorprofile"
)

// maxPromptBytes bounds what is read from standard input.
const maxPromptBytes = 8 << 20

type chatCmd struct {
	URL         string   `env:"TRCTL_URL" default:"http://127.0.0.1:8000" placeholder:"URL" help:"Address of an OpenAI-compatible server (${default})."`
	Model       string   `short:"m" placeholder:"NAME" help:"Served name to ask for (the server's first)."`
	Prompt      string   `short:"p" placeholder:"TEXT" help:"Ask this and end. Piped standard input is a prompt too."`
	System      string   `placeholder:"TEXT" help:"System message."`
	MaxTokens   int      `placeholder:"N" help:"Bound of an answer in tokens (the server's)."`
	Temperature *float64 `placeholder:"T" help:"Sampling temperature, 0 for greedy (the server's)."`
	Seed        *int64   `placeholder:"N" help:"Seed: the same seed gives the same answer."`
	Output      string   `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}; json needs a single prompt."`
}

// chatReport is a one-shot answer as JSON; its names are stable.
type chatReport struct {
	Model      string         `json:"model"`
	Text       string         `json:"text"`
	Reasoning  string         `json:"reasoning,omitempty"`
	Policy     string         `json:"policy"`
	Models     []string       `json:"models"`
	Tokens     map[string]int `json:"tokens"`
	LargeShare float64        `json:"large_share"`
}

// Run asks once, or holds a conversation when standard input is a terminal.
func (c *chatCmd) Run(ctx context.Context, p process) error {
	if err := checkURL(c.URL); err != nil {
		return err
	}
	prompt := c.Prompt
	interactive := prompt == "" && isTerminal(p.in)
	if prompt == "" && !interactive {
		text, err := io.ReadAll(io.LimitReader(p.in, maxPromptBytes))
		if err != nil {
			return fmt.Errorf("read the prompt: %w", err)
		}
		prompt = strings.TrimSpace(string(text))
	}
	if prompt == "" && !interactive {
		return usagef("there is no prompt: give one by -p or on standard input")
	}
	if interactive && c.Output == "json" {
		return usagef("-o json needs a prompt by -p or on standard input")
	}
	cl := newClient(c.URL)
	name, err := c.connect(ctx, cl)
	if err != nil {
		return err
	}
	talk := &conversation{chatCmd: c, client: cl, model: name, painter: newPainter()}
	if c.System != "" {
		talk.turns = append(talk.turns, message{"system", c.System})
	}
	if interactive {
		return talk.loop(ctx, p)
	}
	if c.Output == "json" {
		return talk.askJSON(ctx, p, prompt)
	}
	return talk.ask(ctx, p, prompt)
}

// connect finds the served name to use, and says what to do when no server is there.
func (c *chatCmd) connect(ctx context.Context, cl *client) (string, error) {
	name, err := cl.pick(ctx, c.Model)
	var refused *apiError
	if err != nil && !errors.As(err, &refused) {
		return "", fmt.Errorf("%w\nIs a server running there? `trctl serve` starts one", err)
	}
	return name, err
}

// conversation is a chat with its history.
type conversation struct {
	*chatCmd
	client  *client
	model   string
	painter *painter
	turns   []message
}

// loop reads prompts until the input ends.
func (t *conversation) loop(ctx context.Context, p process) error {
	fmt.Fprintf(p.out, "Chat with %s at %s. /new forgets the conversation, /exit or Ctrl-D ends it.\n", t.model, t.client.base)
	start := len(t.turns)
	lines := bufio.NewScanner(p.in)
	lines.Buffer(nil, maxPromptBytes)
	for {
		fmt.Fprint(p.out, "> ")
		if !lines.Scan() {
			fmt.Fprintln(p.out)
			return lines.Err()
		}
		line := strings.TrimSpace(lines.Text())
		switch line {
		case "":
			continue
		case "/exit":
			return nil
		case "/new":
			t.turns = t.turns[:start]
			continue
		}
		err := t.ask(ctx, p, line)
		var refused *apiError
		switch {
		case errors.Is(err, context.Canceled) && ctx.Err() == nil:
			fmt.Fprintln(p.err, "(stopped)")
		case errors.As(err, &refused):
			fmt.Fprintln(p.err, err)
		case err != nil:
			return err
		}
	}
}

// ask prints one answer as it comes, then who wrote it. Ctrl-C stops the answer.
func (t *conversation) ask(ctx context.Context, p process, prompt string) error {
	out := colorprofile.NewWriter(p.out, os.Environ())
	notes := colorprofile.NewWriter(p.err, os.Environ())
	start := time.Now()
	got, err := t.exchange(ctx, prompt, func(model string, d delta) error {
		if _, err := io.WriteString(out, t.painter.paint(model, d.Reasoning, true)); err != nil {
			return err
		}
		_, err := io.WriteString(out, t.painter.paint(model, d.Content, false))
		return err
	})
	fmt.Fprintln(out)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(notes, t.painter.summary(got, time.Since(start)))
	return err
}

func (t *conversation) askJSON(ctx context.Context, p process, prompt string) error {
	got, err := t.exchange(ctx, prompt, func(string, delta) error { return nil })
	if err != nil {
		return err
	}
	return writeJSON(p, got)
}

// exchange sends prompt with the history, calls each for every piece, and keeps
// the answer in the history when it came to its end.
func (t *conversation) exchange(ctx context.Context, prompt string, each func(model string, d delta) error) (*chatReport, error) {
	ctx, stop := untilSignal(ctx)
	defer stop()
	turns := append(t.turns[:len(t.turns):len(t.turns)], message{"user", prompt})
	got := &chatReport{Model: t.model, Models: []string{}, Tokens: map[string]int{}}
	var text, reasoning strings.Builder
	request := chatRequest{Model: t.model, Messages: turns, MaxTokens: t.MaxTokens, Temperature: t.Temperature, Seed: t.Seed}
	err := t.client.stream(ctx, request, func(r *reply) error {
		model := ""
		if r.Routing != nil {
			model = r.Routing.Model
			if r.Routing.Models != nil {
				got.Policy, got.Models, got.Tokens, got.LargeShare = r.Routing.Policy, r.Routing.Models, r.Routing.Tokens, r.Routing.LargeShare
			}
		}
		for _, choice := range r.Choices {
			text.WriteString(choice.Delta.Content)
			reasoning.WriteString(choice.Delta.Reasoning)
			if err := each(model, choice.Delta); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	got.Text, got.Reasoning = text.String(), reasoning.String()
	t.turns = append(turns, message{"assistant", got.Text})
	return got, nil
}
