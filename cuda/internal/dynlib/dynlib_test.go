package dynlib

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCandidates(t *testing.T) {
	if got := Candidates("/x/liby.so", "liba.so.1", "liba.so.2"); !slices.Equal(got, []string{"/x/liby.so"}) {
		t.Errorf("explicit path: got %v", got)
	}
	got := Candidates("", "liba-not-there.so.1", "liba-not-there.so.2")
	if !slices.Equal(got, []string{"liba-not-there.so.1", "liba-not-there.so.2"}) {
		t.Errorf("absent files must not be listed: got %v", got)
	}
}

func TestOpenMissing(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "libbroken.so")
	if err := os.WriteFile(broken, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open([]string{"libtrctl-not-there.so.9", broken})
	if !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v, want ErrNotFound", err)
	}
	for _, want := range []string{"libtrctl-not-there.so.9", "libbroken.so"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
	if _, err := Open(nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("no candidates: got %v, want ErrNotFound", err)
	}
}

func TestOpenFound(t *testing.T) {
	lib, err := Open([]string{"libtrctl-not-there.so.9", "libc.so.6"})
	if err != nil {
		t.Skipf("no C library can be opened here: %v", err)
	}
	if lib.Path != "libc.so.6" || lib.Handle == 0 {
		t.Errorf("got %+v", lib)
	}
	if !lib.Has("malloc") || lib.Has("trctl_no_such_symbol") {
		t.Errorf("symbol look-up is wrong")
	}
}
