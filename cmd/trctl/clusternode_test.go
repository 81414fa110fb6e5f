package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Where nodes and operators keep their files when no flag says so.
func TestDefaultData(t *testing.T) {
	t.Setenv("TRCTL_DATA_HOME", "/srv/nodes")
	if dir, err := defaultData("worker"); err != nil || dir != "/srv/nodes/worker" {
		t.Errorf("with TRCTL_DATA_HOME: %q, %v", dir, err)
	}
	t.Setenv("TRCTL_DATA_HOME", "")
	t.Setenv("XDG_DATA_HOME", "/home/a/data")
	want := "/home/a/data/trctl/worker"
	if os.Getuid() == 0 {
		want = "/var/lib/trctl/worker"
	}
	if dir, err := defaultData("worker"); err != nil || dir != want {
		t.Errorf("%q, %v; want %s", dir, err, want)
	}
}

// The tests see none of the machine's own identities.
func TestAlone(t *testing.T) {
	dir, err := defaultData("admin")
	if err != nil || filepath.Dir(filepath.Dir(dir)) == "/var/lib" {
		t.Errorf("an identity would be read from %s (%v)", dir, err)
	}
}
