package wholefile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, test := range []struct {
		text string
		mode fs.FileMode
	}{{"first", 0o600}, {"", 0o644}, {"another, longer", 0o600}} {
		if err := Write(path, []byte(test.text), test.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != test.text {
			t.Errorf("%q, want %q (%v)", got, test.text, err)
		}
		stat, err := os.Stat(path)
		if err != nil || stat.Mode().Perm() != test.mode {
			t.Errorf("%q: mode %v, want %v (%v)", test.text, stat.Mode(), test.mode, err)
		}
	}
	alone(t, dir, "f")
}

// A reader that has opened the old file goes on reading it.
func TestOldReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := Write(path, []byte("newer"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 10)
	if n, err := f.Read(text); err != nil || string(text[:n]) != "old" {
		t.Errorf("%q, %v", text[:n], err)
	}
}

func TestFailures(t *testing.T) {
	dir := t.TempDir()
	if err := Write(filepath.Join(dir, "none", "f"), nil, 0o600); err == nil {
		t.Error("a file in no directory")
	}
	// A directory cannot be replaced by a file; nothing is left beside it.
	if err := os.MkdirAll(filepath.Join(dir, "d", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "d"), []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	alone(t, dir, "d")
}

// alone says that a directory has one entry.
func alone(t *testing.T, dir, name string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 || list[0].Name() != name {
		t.Errorf("%v, %v", list, err)
	}
}
