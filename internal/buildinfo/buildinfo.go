package buildinfo

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Build describes the running binary. Its JSON names are stable.
type Build struct {
	// Version is the module version, or "dev" when built from a checkout.
	Version string `json:"version"`
	// Commit is the full hash, empty when the build did not record it.
	Commit string `json:"commit,omitempty"`
	// Time is the commit's time in RFC 3339, empty like Commit.
	Time string `json:"time,omitempty"`
	// Modified says that the checkout had changes that are not in Commit.
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	// CGO says that the build has the parts that need a C compiler (the GPU).
	CGO bool `json:"cgo"`
	// Tags are the build tags, such as nvml; empty for none.
	Tags string `json:"tags,omitempty"`
}

// Current returns the description of this binary.
func Current() Build {
	stored, ok := debug.ReadBuildInfo()
	if !ok {
		stored = &debug.BuildInfo{}
	}
	return from(stored)
}

func from(stored *debug.BuildInfo) Build {
	b := Build{Version: stored.Main.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "dev"
	}
	for _, s := range stored.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		case "CGO_ENABLED":
			b.CGO = s.Value == "1"
		case "-tags":
			b.Tags = s.Value
		}
	}
	return b
}

// String is the one line that people paste into a report.
func (b Build) String() string {
	var parts []string
	if b.Commit != "" {
		commit := b.Commit[:min(12, len(b.Commit))]
		if b.Modified {
			commit += " with changes"
		}
		parts = append(parts, commit)
	}
	parts = append(parts, b.Go, b.OS+"/"+b.Arch)
	if b.CGO {
		parts = append(parts, "cgo")
	}
	if b.Tags != "" {
		parts = append(parts, "tags "+b.Tags)
	}
	return fmt.Sprintf("%s (%s)", b.Version, strings.Join(parts, ", "))
}
