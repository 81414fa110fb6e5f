package main

import (
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/trace"
)

func TestWriteTrace(t *testing.T) {
	began := time.Date(2026, 5, 1, 12, 0, 0, 0, time.Local)
	ms := time.Millisecond
	var out strings.Builder
	err := writeTrace(&out, []trace.Part{
		{Epoch: 1, Deployment: "tiny", Model: "tiny-l", Replica: "tiny-l-b", Began: began, Took: 2 * ms, Steps: 3, Tokens: 2},
		{
			Epoch: 2, Deployment: "tiny", Model: "tiny-s", Replica: "tiny-s-c", Entry: true, Began: began, Took: 12 * ms, Queued: 100 * time.Microsecond,
			BatchWait: 1500 * time.Microsecond, Steps: 9, Tokens: 7, Prompt: 20, Cached: 16, Answer: 9, End: "stop", Dropped: 4, Visits: []trace.Visit{
				{Model: "tiny-s", Replica: "tiny-s-c", From: 0, Took: 3 * ms, Tokens: 7},
				{Model: "tiny-l", Replica: "tiny-l-d", Try: 1, Hop: 0, From: 5 * ms, Took: 7 * ms, Tokens: 2},
			},
		},
		{Epoch: 2, Deployment: "tiny", Model: "tiny-l", Replica: "tiny-l-d", Began: began, Took: 7 * ms, Steps: 2, Tokens: 2},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	const want = `epoch 2 of tiny at tiny-s-c (tiny-s): stop, began 2026-05-01 12:00:00.000
  20 prompt tokens, 16 of them cached; 9 tokens after 12ms
  AT   MODEL   REPLICA   HOP         TOKENS  TOOK
  0ms  tiny-s  tiny-s-c  0           7       3ms
  5ms  tiny-l  tiny-l-d  0 of try 2  2       7ms
  … 4 visits were not kept

EPOCH  REPLICA   MODEL   TOKENS  STEPS  QUEUED  WAITED FOR STEPS  HELD
1      tiny-l-b  tiny-l  2       3      0ms     0ms               2ms
2      tiny-s-c  tiny-s  7       9      0.10ms  1.50ms            12ms
2      tiny-l-d  tiny-l  2       2      0ms     0ms               7ms
The entry of epoch 1 does not remember it: it was lost, or started anew.
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
