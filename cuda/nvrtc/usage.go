package nvrtc

import (
	"regexp"
	"strconv"
	"strings"
)

// Usage is what the assembler says about one kernel.
type Usage struct {
	// Kernel is the plain name.
	Kernel string
	// Registers are per thread.
	Registers int
	// StackBytes, SpillStoreBytes and SpillLoadBytes are per thread; a kernel that spills nothing has zeros. A kernel
	// that spills has a stack, also where nothing tells the spills' size.
	StackBytes, SpillStoreBytes, SpillLoadBytes int
	// SharedBytes is the static shared memory of a block. Read from the image it includes what the system reserves.
	SharedBytes int
}

// Usage reads the resources of each kernel, so that tests without a GPU can bound registers and spills: from the log
// or, where the library logged none (NVRTC 13.0 loses logs of compilations at the same time), from the image.
func (b Binary) Usage() []Usage {
	if out := b.logUsage(); len(out) > 0 {
		return out
	}
	return cubinUsage(b.Cubin)
}

func (b Binary) logUsage() []Usage {
	var out []Usage
	for line := range strings.Lines(b.Log) {
		if m := entryLine.FindStringSubmatch(line); m != nil {
			out = append(out, Usage{Kernel: m[1]})
			continue
		}
		if len(out) == 0 {
			continue
		}
		u := &out[len(out)-1]
		for _, field := range usageFields {
			if m := field.pattern.FindStringSubmatch(line); m != nil {
				// The pattern admits digits only; a number beyond int counts as 0. Functions that were not inlined have lines of
				// their own after the kernel's.
				n, _ := strconv.Atoi(m[1])
				*field.value(u) += n
			}
		}
	}
	return out
}

var (
	entryLine   = regexp.MustCompile(`Compiling entry function '([^']+)'`)
	usageFields = []struct {
		pattern *regexp.Regexp
		value   func(*Usage) *int
	}{
		{regexp.MustCompile(`Used (\d+) registers`), func(u *Usage) *int { return &u.Registers }},
		{regexp.MustCompile(`(\d+) bytes stack frame`), func(u *Usage) *int { return &u.StackBytes }},
		{regexp.MustCompile(`(\d+) bytes spill stores`), func(u *Usage) *int { return &u.SpillStoreBytes }},
		{regexp.MustCompile(`(\d+) bytes spill loads`), func(u *Usage) *int { return &u.SpillLoadBytes }},
		{regexp.MustCompile(`(\d+) bytes smem`), func(u *Usage) *int { return &u.SharedBytes }},
	}
)
