package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
)

func TestExample(t *testing.T) {
	var out strings.Builder
	if err := run(context.Background(), &out, "What is 48 + 72 * 29?"); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`\[[^]]+\].*(?s:.)+tiny-l wrote [1-9][0-9]* of [0-9]+ tokens\n$`).MatchString(out.String()) {
		t.Errorf("printed %q", out.String())
	}
}
