package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/policies"
)

// sparing lets the large model write where the small one is unsure, but never two
// tokens on end.
func sparing() *policies.Set {
	return policies.Named("sparing", policies.Binary(func(row policies.Row) bool {
		return row.Entropy > 0.01 && row.SinceHop > 1
	}))
}

func main() {
	question := "What is 48 + 72 * 29?"
	if len(os.Args) > 1 {
		question = strings.Join(os.Args[1:], " ")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, question)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "policy:", err)
		os.Exit(1)
	}
}

// run prints the answer as it comes, with the large model's tokens in brackets.
func run(ctx context.Context, w io.Writer, question string) (err error) {
	cfg := engine.Defaults()
	cfg.Deployments[0].Policy = engine.Policy{Own: sparing()}
	e, err := engine.New(cfg)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := e.Close(); err == nil {
			err = closeErr
		}
	}()
	for tok, err := range e.Generate(ctx, engine.Request{
		Model:     "tiny",
		Messages:  []engine.Message{{Role: "user", Content: question}},
		MaxTokens: 300,
	}) {
		switch {
		case err != nil:
			return err
		case tok.End != nil:
			fmt.Fprintf(w, "%s\n\n%s wrote %d of %d tokens\n", tok.Text, cfg.Models[1].Name, tok.End.Count(cfg.Models[1].Name), tok.End.Completion)
		case tok.Model == cfg.Models[1].Name && tok.Text != "":
			fmt.Fprintf(w, "[%s]", tok.Text)
		default:
			fmt.Fprint(w, tok.Text)
		}
	}
	return nil
}
