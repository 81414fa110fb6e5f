package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/models/catalogue"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

type kernelsCmd struct {
	Build kernelsBuildCmd `cmd:"" help:"Compile the kernels of models into the cache. Needs NVRTC, but no GPU."`
}

type kernelsBuildCmd struct {
	gpuFlags
	Arch     []string `required:"" placeholder:"ARCH" help:"Architectures, such as sm_80,sm_90a."`
	Models   []string `placeholder:"MODEL" help:"Embedded models, names of the catalogue or checkpoint directories (the embedded trio)."`
	PageSize int      `default:"${page_size}" help:"Token slots in a page of keys and values, as serve will have it (${default})."`
	Output   string   `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
}

// kernelsReport is what was built; its JSON names are stable.
type kernelsReport struct {
	NVRTC string        `json:"nvrtc"`
	Cache string        `json:"cache"`
	Built []kernelsDone `json:"built"`
}

// kernelsDone is one model on one architecture.
type kernelsDone struct {
	Model    string  `json:"model"`
	Arch     string  `json:"arch"`
	Kernels  int     `json:"kernels"`
	Cached   int     `json:"cached"`
	Compiled int     `json:"compiled"`
	Seconds  float64 `json:"seconds"`
}

// Run compiles what the cache lacks.
func (k *kernelsBuildCmd) Run(ctx context.Context, p process) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	builder, report, err := k.builder()
	if err != nil {
		return err
	}
	items := k.Models
	if len(items) == 0 {
		items = models.Names()
	}
	for _, item := range items {
		m, err := modelNamed(item)
		if err != nil {
			return err
		}
		dims, err := dimsOf(m, k.PageSize)
		if err != nil {
			return fmt.Errorf("model %s: %w", m.Name, err)
		}
		for _, arch := range k.Arch {
			done, err := buildKernels(ctx, builder, m.Name, dims, arch)
			if err != nil {
				return err
			}
			report.Built = append(report.Built, done)
			if k.Output == "text" {
				fmt.Fprintf(p.out, "%s %s: %d kernels, %d cached, %d compiled in %.1f s\n",
					done.Model, done.Arch, done.Kernels, done.Cached, done.Compiled, done.Seconds)
			}
		}
	}
	if k.Output == "json" {
		return writeJSON(p, report)
	}
	_, err = fmt.Fprintf(p.out, "NVRTC %s, cache %s\n", report.NVRTC, report.Cache)
	return err
}

func (k *kernelsBuildCmd) builder() (*nvrtc.Builder, *kernelsReport, error) {
	dir, err := k.cacheDir()
	if err != nil {
		return nil, nil, err
	}
	compiler, err := nvrtc.Load(nvrtc.Options{LibraryPath: k.NVRTC})
	if err != nil {
		return nil, nil, fmt.Errorf("%w (trctl doctor says what to install)", err)
	}
	cache, err := nvrtc.OpenCache(nvrtc.CacheConfig{Dir: dir})
	if err != nil {
		return nil, nil, err
	}
	builder, err := nvrtc.NewBuilder(nvrtc.BuilderConfig{Compiler: compiler, Cache: cache})
	return builder, &kernelsReport{NVRTC: compiler.Version(), Cache: cache.Dir()}, err
}

// buildKernels compiles one model's kernels for one architecture. A cache that
// cannot take them is an error: filling it is the point.
func buildKernels(ctx context.Context, b *nvrtc.Builder, name string, dims kernels.Dims, arch string) (kernelsDone, error) {
	programs, err := kernels.Programs(dims, arch)
	if err != nil {
		return kernelsDone{}, err
	}
	begin := time.Now()
	_, stats, err := b.Build(ctx, programs)
	if ctx.Err() != nil {
		return kernelsDone{}, ctx.Err()
	}
	if errors.Is(err, nvrtc.ErrProgram) {
		return kernelsDone{}, &usageError{err}
	}
	if err = errors.Join(err, stats.StoreError); err != nil {
		return kernelsDone{}, fmt.Errorf("model %s for %s: %w", name, arch, err)
	}
	return kernelsDone{name, arch, len(programs), stats.Cached, stats.Compiled, time.Since(begin).Seconds()}, nil
}

// dimsOf reads a checkpoint's dimensions without its weights.
func dimsOf(m node.Model, pageSize int) (kernels.Dims, error) {
	files, known := models.FS(m.Name)
	if m.Dir != "" {
		files, known = os.DirFS(m.Dir), true
	}
	if !known {
		return cataloguedDims(m.Name, pageSize)
	}
	text, err := fs.ReadFile(files, "config.json")
	if err != nil {
		return kernels.Dims{}, err
	}
	c, err := model.ParseConfig(text)
	if err != nil {
		return kernels.Dims{}, err
	}
	ids, err := tokenizer.Load(files)
	if err != nil {
		return kernels.Dims{}, err
	}
	return dimsFor(&c, pageSize, ids.Size())
}

// cataloguedDims are the dimensions of a model of the catalogue.
func cataloguedDims(name string, pageSize int) (kernels.Dims, error) {
	all, err := catalogue.Default()
	if err != nil {
		return kernels.Dims{}, err
	}
	entry, err := all.Find(name)
	if err != nil {
		return kernels.Dims{}, err
	}
	c, err := model.ParseConfig(entry.Config)
	if err != nil {
		return kernels.Dims{}, err
	}
	return dimsFor(&c, pageSize, entry.RealVocab)
}

func dimsFor(c *model.Config, pageSize, vocab int) (kernels.Dims, error) {
	dims := kernels.Dims{Hidden: c.Hidden, FFN: c.FFN, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, PageSize: pageSize, Vocab: vocab}
	return dims, dims.Check()
}
