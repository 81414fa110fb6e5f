package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(alone{m}, map[string]func(){"trctl": main})
}

// alone runs the tests without what the user or the machine has: settings in the
// environment, identities, sockets and pulled models.
type alone struct{ m *testing.M }

// Run runs the tests, and returns their exit code.
func (a alone) Run() int {
	dir, err := os.MkdirTemp("", "trctl-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		ours := strings.HasPrefix(name, "TRCTL_") && name != "TRCTL_NVRTC" && name != templatesEnv // which are for tests
		if ours || strings.HasPrefix(name, "HF_") {
			os.Unsetenv(name)
		}
	}
	for name, below := range map[string]string{"TRCTL_DATA_HOME": "data", "HF_HOME": "hub", "HF_TOKEN_PATH": "none", "XDG_RUNTIME_DIR": "run"} {
		os.Setenv(name, filepath.Join(dir, below))
	}
	return a.m.Run()
}

func TestScripts(t *testing.T) {
	server := fakeServer()
	t.Cleanup(server.Close) // the scripts run in parallel, after this function
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0")                          // else every process of a race build ends a second late
			env.Setenv("TRCTL_DATA_HOME", filepath.Join(env.WorkDir, ".data")) // what else the scripts see is below their HOME and TMPDIR
			env.Setenv("FAKE", server.URL)
			env.Setenv("REPO", root+"/../..")
			return nil
		},
	})
}

func TestRunWithoutArguments(t *testing.T) {
	devnull, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer devnull.Close()
	p := process{in: devnull, out: devnull, err: devnull}
	if code := run(context.Background(), nil, p); code != exitDone {
		t.Errorf("run() = %d", code)
	}
	if code := run(context.Background(), []string{"nothing"}, p); code != exitUsage {
		t.Errorf("run(nothing) = %d", code)
	}
}
