package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], process{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
