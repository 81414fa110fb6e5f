package main

import (
	"context"
	"os"
	"time"
)

func main() {
	began := time.Now()
	p := process{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	code := run(context.Background(), os.Args[1:], p)
	if code == exitDevice {
		restart(p, os.Args, os.Environ(), time.Since(began))
	}
	os.Exit(code)
}
