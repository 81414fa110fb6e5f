package kernels

import (
	"context"
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// Prebuild compiles the kernels of several models, and those of router nets, for several architectures, so that a cubin
// cache behind b is filled where there is no GPU, such as when an image is built. A program that models share is compiled
// once. progress, which may be nil, is told after each architecture and model.
func Prebuild(ctx context.Context, b Builder, archs []string, models []Dims, progress func(done, total int)) (nvrtc.BuildStats, error) {
	var sum nvrtc.BuildStats
	seen := map[nvrtc.Key]bool{}
	done, total := 0, len(archs)*len(models)
	for _, arch := range archs {
		for _, d := range models {
			programs, err := Programs(d, arch)
			if err != nil {
				return sum, err
			}
			routers, err := RouterPrograms(arch)
			if err != nil {
				return sum, err
			}
			programs = append(programs, routers...)
			fresh := programs[:0]
			for _, p := range programs {
				if key := nvrtc.KeyOf(p, ""); !seen[key] {
					seen[key] = true
					fresh = append(fresh, p)
				}
			}
			_, stats, err := b.Build(ctx, fresh)
			sum.Cached += stats.Cached
			sum.Compiled += stats.Compiled
			sum.Stored += stats.Stored
			if sum.StoreError == nil {
				sum.StoreError = stats.StoreError
			}
			if err != nil {
				return sum, fmt.Errorf("build kernels for %s: %w", arch, err)
			}
			if done++; progress != nil {
				progress(done, total)
			}
		}
	}
	return sum, nil
}
