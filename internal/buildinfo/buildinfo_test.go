package buildinfo

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestFrom(t *testing.T) {
	stored := &debug.BuildInfo{
		Main: debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"},
			{Key: "vcs.time", Value: "2026-11-29T18:00:00Z"},
			{Key: "vcs.modified", Value: "true"},
			{Key: "CGO_ENABLED", Value: "1"},
			{Key: "-tags", Value: "nvml"},
		},
	}
	b := from(stored)
	if b.Version != "v1.2.3" || !b.Modified || !b.CGO || b.Time != "2026-11-29T18:00:00Z" {
		t.Errorf("from = %+v", b)
	}
	want := "v1.2.3 (0123456789ab with changes, " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ", cgo, tags nvml)"
	if got := b.String(); got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}

func TestFromWithoutRecords(t *testing.T) {
	for _, version := range []string{"", "(devel)"} {
		b := from(&debug.BuildInfo{Main: debug.Module{Version: version}})
		if b.Version != "dev" || b.Commit != "" || b.CGO {
			t.Errorf("from(%q) = %+v", version, b)
		}
	}
	if !strings.Contains(Current().String(), runtime.Version()) {
		t.Errorf("Current = %q", Current())
	}
}
