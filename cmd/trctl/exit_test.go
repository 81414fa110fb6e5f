package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/engine"
)

func TestExitCodes(t *testing.T) {
	cause := errors.New("cause")
	tests := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errShown, 0},
		{cause, 1},
		{usagef("x: %w", cause), 2},
		{fmt.Errorf("wrapped: %w", &usageError{cause}), 2},
		{&serverError{cause}, 3},
		{&boundError{cause}, 4},
		{fmt.Errorf("executor of m: GPU 0: %w", engine.ErrDeviceLost), 5},
		{fmt.Errorf("%w: replica s-0", engine.ErrHung), 5},
		{context.Canceled, 130},
		{&serverError{context.Canceled}, 130},
	}
	for err, want := range map[error]int{
		fmt.Errorf("%w: replica s-0", engine.ErrHung): 0, fmt.Errorf("GPU 0: %w", engine.ErrDeviceLost): 0, context.Canceled: 0, cause: 1,
		usagef("x: %w", cause): 2, usagef("x: %w", context.Canceled): 0,
	} {
		if got := stoppedCode(err); got != want {
			t.Errorf("stoppedCode(%v) = %d, want %d", err, got, want)
		}
	}
	for _, test := range tests {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("exitCode(%v) = %d, want %d", test.err, got, test.want)
		}
		if !strings.Contains(exitTopic, fmt.Sprintf("%3d  ", test.want)) {
			t.Errorf("exit code %d is not documented", test.want)
		}
	}
}
