package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tokenrouter/tokenrouter/internal/wholefile"
	"github.com/tokenrouter/tokenrouter/worker/router"
	"github.com/tokenrouter/tokenrouter/worker/router/pickle"
)

type modelConvertRouterCmd struct {
	File      string   `arg:"" placeholder:"FILE" help:"A file that torch.save wrote (.pt, .pth): R2R's, or the state dict of a CITER or Co-LLM head."`
	Output    string   `short:"o" env:"TRCTL_CONVERT_OUTPUT" placeholder:"NAME" help:"Name of the result: NAME.safetensors and NAME.json, or a directory for them (FILE without its extension)."`
	Model     string   `env:"TRCTL_CONVERT_MODEL" placeholder:"NAME" help:"The entry model that the router was trained on (what FILE says)."`
	Threshold *float64 `env:"TRCTL_CONVERT_THRESHOLD" placeholder:"T" help:"The threshold that it was tuned to (what FILE says)."`
	Force     bool     `env:"TRCTL_CONVERT_FORCE" help:"Overwrite files that are there."`
}

// stem is the result's path without extension.
func (m *modelConvertRouterCmd) stem() string {
	own := m.File[:len(m.File)-len(filepath.Ext(m.File))]
	stat, err := os.Stat(m.Output)
	switch {
	case m.Output == "":
		return own
	case err == nil && stat.IsDir(), strings.HasSuffix(m.Output, string(filepath.Separator)):
		return filepath.Join(m.Output, filepath.Base(own))
	}
	return router.Stem(m.Output)
}

// Run converts. Nothing in the file is run; a file that asks for it is exit code 1.
func (m *modelConvertRouterCmd) Run(p process) error {
	stem := m.stem()
	if err := firstOf(checkShare("--threshold", m.Threshold), checkOutput("--output", stem+".json")); err != nil {
		return err
	}
	c, err := router.Convert(m.File, router.Conversion{Model: m.Model, Threshold: m.Threshold})
	switch {
	case errors.Is(err, router.ErrNoModel):
		return usagef("%w; say it by --model", err)
	case errors.Is(err, fs.ErrNotExist):
		return usagef("%w", err)
	case errors.Is(err, pickle.ErrRefused):
		return fmt.Errorf("%w (nothing of it was run)", err)
	case err != nil:
		return err
	}
	sidecar, weights, err := c.Encode()
	if err != nil {
		return err
	}
	// The sidecar comes last: without it there is no router.
	for _, f := range []struct {
		path string
		text []byte
	}{{stem + ".safetensors", weights}, {stem + ".json", sidecar}} {
		if err := m.write(f.path, f.text); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(p.out, "%s  %s\n", f.path, sizeText(int64(len(f.text)))); err != nil {
			return err
		}
	}
	threshold := "no threshold"
	if c.Threshold != nil {
		threshold = fmt.Sprintf("threshold %g", *c.Threshold)
	}
	_, err = fmt.Fprintf(p.out, "%v, hidden size %d, %s\n", c, c.HiddenSize, threshold)
	return err
}

// write puts a whole file in its place, or nothing.
func (m *modelConvertRouterCmd) write(path string, text []byte) error {
	if _, err := os.Lstat(path); err == nil && !m.Force {
		return usagef("%s is there already; --force overwrites it", path)
	}
	return wholefile.Write(path, text, 0o644)
}
