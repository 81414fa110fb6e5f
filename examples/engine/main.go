package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/tokenrouter/tokenrouter/engine"
)

func main() {
	question := "What is 48 + 72 * 29?"
	if len(os.Args) > 1 {
		question = strings.Join(os.Args[1:], " ")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, question)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
}

// run prints the answer as it comes, and then who wrote how much of it.
func run(ctx context.Context, w io.Writer, question string) (err error) {
	e, err := engine.New(engine.Defaults())
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := e.Close(); err == nil {
			err = closeErr
		}
	}()
	model := ""
	for tok, err := range e.Generate(ctx, engine.Request{
		Model:     "tiny",
		Messages:  []engine.Message{{Role: "user", Content: question}},
		MaxTokens: 300,
	}) {
		if err != nil {
			return err
		}
		if tok.Model != "" && tok.Model != model {
			model = tok.Model
			fmt.Fprintf(w, "\n%8s| ", model)
		}
		fmt.Fprint(w, strings.ReplaceAll(tok.Text, "\n", "⏎"))
		if tok.End == nil {
			continue
		}
		fmt.Fprintf(w, "\n\n%s after %d tokens:", tok.End.Finish, tok.End.Completion)
		for _, m := range e.Models() {
			fmt.Fprintf(w, " %s %d", m.Name, tok.End.Count(m.Name))
		}
		fmt.Fprintln(w)
	}
	return nil
}
