package nvrtc

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/sourcegraph/conc/pool"
)

// BuilderConfig joins a compiler and a cache. Either may be nil: without a compiler only cached programs can be had,
// without a cache each is compiled.
type BuilderConfig struct {
	Compiler *Compiler
	Cache    *Cache
	// Parallel bounds the compilations at a time; 0 means one for each core.
	Parallel int
}

// Builder makes cubins from programs. It is safe for concurrent use.
type Builder struct {
	compiler *Compiler
	cache    *Cache
	// versions are those whose entries to look for: the compiler's, or all that filled the cache.
	versions []string
	parallel int
}

// NewBuilder checks the configuration. Without a Compiler and with a cache that nothing has filled, it returns
// ErrNoLibrary.
func NewBuilder(cfg BuilderConfig) (*Builder, error) {
	b := &Builder{compiler: cfg.Compiler, cache: cfg.Cache, parallel: cfg.Parallel}
	switch {
	case b.compiler != nil:
		b.versions = []string{b.compiler.Version()}
	case b.cache == nil:
		return nil, fmt.Errorf("build kernels: %w, and there is no cache", ErrNoLibrary)
	default:
		var err error
		if b.versions, err = b.cache.Versions(); err != nil {
			return nil, fmt.Errorf("build kernels: %w", err)
		}
		if len(b.versions) == 0 {
			return nil, fmt.Errorf("build kernels: %w, and the cache in %s is empty", ErrNoLibrary, b.cache.Dir())
		}
	}
	if b.parallel <= 0 {
		b.parallel = runtime.GOMAXPROCS(0)
	}
	return b, nil
}

// BuildStats counts what Build did.
type BuildStats struct {
	// Cached programs came from the cache, Compiled ones from NVRTC; Stored of those went into the cache.
	Cached, Compiled, Stored int
	// StoreError is why the others were not stored; ErrCacheReadOnly is normal for an image's cache. The cubins are
	// good nevertheless.
	StoreError error
}

// Build returns the binaries of the programs, in their order. It compiles what the cache lacks, in parallel. When the
// compiler refuses programs, the error joins all their *CompileErrors; ctx ends the work between two compilations.
func (b *Builder) Build(ctx context.Context, programs []Program) ([]Binary, BuildStats, error) {
	type outcome struct {
		binary   Binary
		cached   bool
		storeErr error
		err      error
	}
	results := make([]outcome, len(programs))
	group := pool.New().WithMaxGoroutines(b.parallel)
	for i := range programs {
		group.Go(func() {
			r := &results[i] // each goroutine writes its own element
			if r.err = ctx.Err(); r.err != nil {
				return
			}
			r.binary, r.cached, r.storeErr, r.err = b.build(programs[i])
		})
	}
	group.Wait()
	var stats BuildStats
	var errs []error
	out := make([]Binary, len(programs))
	for i, r := range results {
		out[i] = r.binary
		switch {
		case r.err != nil:
			errs = append(errs, r.err)
		case r.cached:
			stats.Cached++
		default:
			stats.Compiled++
			if r.storeErr == nil && b.cache != nil {
				stats.Stored++
			}
		}
		if stats.StoreError == nil {
			stats.StoreError = r.storeErr
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, stats, fmt.Errorf("build kernels: %w", context.Cause(ctx))
	}
	if len(errs) > 0 {
		return nil, stats, errors.Join(errs...)
	}
	return out, stats, nil
}

// build makes one binary. storeErr is set when it could not be put into the cache.
func (b *Builder) build(p Program) (binary Binary, cached bool, storeErr, err error) {
	if err := p.check(); err != nil {
		return Binary{}, false, nil, err
	}
	if b.cache != nil {
		for _, version := range b.versions {
			if binary, ok := b.cache.Get(KeyOf(p, version)); ok {
				return binary, true, nil, nil
			}
		}
	}
	if b.compiler == nil {
		return Binary{}, false, nil, fmt.Errorf("%s for %s is not in the cubin cache: %w", p.Name, p.Arch, ErrNoLibrary)
	}
	binary, err = b.compiler.Compile(p)
	if err != nil {
		return Binary{}, false, nil, err
	}
	if b.cache != nil {
		version := b.compiler.Version()
		if storeErr = b.cache.Put(KeyOf(p, version), binary); storeErr == nil {
			storeErr = b.cache.noteVersion(version)
		}
	}
	return binary, false, storeErr, nil
}
