package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/tokenrouter/tokenrouter/internal/hub"
	"github.com/tokenrouter/tokenrouter/models/catalogue"
)

// cacheFlag says where pulled models are.
type cacheFlag struct {
	Cache string `name:"model-cache" env:"TRCTL_MODEL_CACHE,HF_HUB_CACHE" placeholder:"DIR" help:"Cache of models, in the layout of the hub's own tools (their folder)."`
}

// dir is the cache's folder, which need not exist.
func (c *cacheFlag) dir() (string, error) {
	if c.Cache != "" {
		return c.Cache, nil
	}
	if home := os.Getenv("HF_HOME"); home != "" {
		return filepath.Join(home, "hub"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", usagef("there is no home folder, give a cache by --model-cache: %w", err)
	}
	return filepath.Join(home, ".cache", "huggingface", "hub"), nil
}

type modelPullCmd struct {
	cacheFlag
	Model        string   `arg:"" placeholder:"ORG/NAME[@REVISION]" help:"A model of the hub, or a name of the catalogue."`
	Dir          string   `placeholder:"DIR" help:"Plain directory to put the files in, instead of the cache."`
	Endpoint     string   `env:"TRCTL_ENDPOINT,HF_ENDPOINT" placeholder:"URL" help:"The hub (https://huggingface.co)."`
	TokenFile    string   `placeholder:"FILE" help:"File with the access token; else HF_TOKEN, then the token file of the hub's own tools."`
	AllowHost    []string `placeholder:"HOST" help:"Hosts that the hub may redirect to, besides its own; .example.org stands for all below."`
	AllowPrivate bool     `help:"Allow plain HTTP and addresses of private networks, for a mirror."`
	Files        int      `default:"4" help:"Files at a time."`
	Ranges       int      `default:"4" help:"Ranges of a file at a time."`
	Output       string   `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
}

// Run downloads. A hub that refuses or cannot be reached is exit code 3.
func (m *modelPullCmd) Run(ctx context.Context, p process) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	id, err := hubID(m.Model)
	if err != nil {
		return err
	}
	cache, err := m.dir()
	if err != nil {
		return err
	}
	token, err := m.token()
	if err != nil {
		return err
	}
	bars := newPullProgress(ctx, p)
	c, err := hub.New(hub.Config{
		Endpoint: m.Endpoint, Token: token, Hosts: m.AllowHost, AllowPrivate: m.AllowPrivate,
		Files: m.Files, Ranges: m.Ranges, Progress: bars.set,
	})
	if err != nil {
		return &usageError{err}
	}
	defer c.Close()
	out, err := c.Pull(ctx, id, cache, m.Dir)
	bars.end()
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, os.ErrPermission) || errors.Is(err, hub.ErrFormat) {
			return err
		}
		return &serverError{err}
	}
	return printPulled(p, out, m.Output)
}

// hubID reads a hub id or a name of the catalogue.
func hubID(s string) (hub.ID, error) {
	if all, err := catalogue.Default(); err == nil {
		name, rev, pinned := strings.Cut(s, "@")
		if entry, err := all.Find(name); err == nil {
			s = entry.Hub
			if pinned {
				s += "@" + rev
			}
		}
	}
	id, err := hub.ParseID(s)
	if err != nil {
		return id, &usageError{err}
	}
	return id, nil
}

// maxTokenFile bounds the token's file.
const maxTokenFile = 4 << 10

// token reads the access token: the flag's file, the environment, or the file that
// the hub's own tools write. There may be none.
func (m *modelPullCmd) token() (string, error) {
	path := m.TokenFile
	if path == "" {
		if t := os.Getenv("HF_TOKEN"); t != "" {
			return strings.TrimSpace(t), nil
		}
		if path = os.Getenv("HF_TOKEN_PATH"); path == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", nil
			}
			path = filepath.Join(home, ".cache", "huggingface", "token")
		}
	}
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) && m.TokenFile == "" {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if st.Size() > maxTokenFile {
		return "", usagef("--token-file: %s has %d bytes", path, st.Size())
	}
	text, err := os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}

func printPulled(p process, out *hub.Pulled, format string) error {
	if format == "json" {
		return writeJSON(p, out)
	}
	for _, f := range out.Files {
		fmt.Fprintf(p.out, "%s  %s\n", f.SHA256, f.Name)
	}
	_, err := fmt.Fprintf(p.out, "%s at %.12s: %s in %d files, %d fetched\n%s\n", out.ID, out.Commit, sizeText(out.Bytes), len(out.Files), out.Fetched, out.Dir)
	return err
}

type modelImportCmd struct {
	cacheFlag
	Dir    string `arg:"" placeholder:"DIR" help:"A checkpoint directory."`
	Model  string `arg:"" placeholder:"ORG/NAME[@REVISION]" help:"What to call it."`
	Output string `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
}

// Run copies the files.
func (m *modelImportCmd) Run(ctx context.Context, p process) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	id, err := hubID(m.Model)
	if err != nil {
		return err
	}
	cache, err := m.dir()
	if err != nil {
		return err
	}
	out, err := hub.Import(ctx, m.Dir, cache, id)
	if err != nil {
		return err
	}
	return printPulled(p, out, m.Output)
}

// pullProgress shows how far the files are: bars on a terminal, else a line for each
// file that is complete.
type pullProgress struct {
	out  process
	bars *mpb.Progress // nil without a terminal

	mu   sync.Mutex // guards what follows
	each map[string]*mpb.Bar
	done map[string]bool
}

func newPullProgress(ctx context.Context, p process) *pullProgress {
	g := &pullProgress{out: p, each: map[string]*mpb.Bar{}, done: map[string]bool{}}
	if isTerminal(p.err) {
		g.bars = mpb.NewWithContext(ctx, mpb.WithOutput(p.err), mpb.WithWidth(40))
	}
	return g
}

// set is told how much of a file is there.
func (g *pullProgress) set(file string, done, total int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bars == nil {
		if done == total && !g.done[file] {
			g.done[file] = true
			fmt.Fprintf(g.out.err, "%s %s\n", file, sizeText(total))
		}
		return
	}
	bar := g.each[file]
	if bar == nil {
		bar = g.bars.AddBar(total,
			mpb.PrependDecorators(decor.Name(file+" "), decor.CountersKibiByte("% .1f / % .1f")),
			mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f"), decor.Name(" "), decor.AverageETA(decor.ET_STYLE_GO)))
		g.each[file] = bar
	}
	bar.SetCurrent(done)
}

// end leaves the terminal clean.
func (g *pullProgress) end() {
	if g.bars == nil {
		return
	}
	g.mu.Lock()
	for _, bar := range g.each {
		if !bar.Completed() {
			bar.Abort(false)
		}
	}
	g.mu.Unlock()
	g.bars.Wait()
}
