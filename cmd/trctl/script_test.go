package main

import (
	"context"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"trctl": main})
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
			env.Setenv("GORACE", "atexit_sleep_ms=0") // else every process of a race build ends a second late
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
