package bench

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestTimesOfAStream(t *testing.T) {
	answer := script(
		act{10 * ms, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n"}, // only the role
		act{40 * ms, ": keep-alive\n\n" + token("a")},
		act{20 * ms, token("b")},
		act{30 * ms, token("c") + token("d")},
		act{50 * ms, stop},
		act{5 * ms, usage(7, 5)},
		act{5 * ms, endMark},
	)
	inBubble(t, answer, func(t *testing.T, transport http.RoundTripper) {
		r := runBench(t, plain(t, transport))
		if r.Succeeded != 1 || r.Failed != 0 || r.OutputTokens != 5 || r.InputTokens != 7 || r.CountedByServer != 1 {
			t.Fatalf("report: %+v", r)
		}
		same(t, "TTFT", spreadOf(t, "TTFT", r.TTFT).Mean, 50)
		gaps := spreadOf(t, "inter-token", r.InterToken)
		if gaps.Count != 3 {
			t.Errorf("%d gaps, want 3", gaps.Count)
		}
		same(t, "longest gap", gaps.Max, 30)
		same(t, "middle gap", gaps.P50, 20)
		same(t, "mean gap", gaps.Mean, 50./3)
		same(t, "latency", spreadOf(t, "latency", r.Latency).Mean, 160)
		same(t, "time per token", spreadOf(t, "time per token", r.PerToken).Mean, 25) // 100 ms for 4 tokens after the first
		same(t, "per user", spreadOf(t, "per user", r.PerUser).Mean, 40)
		same(t, "wall", r.WallS, .160)
		same(t, "tokens/s", r.OutputTokensPerS, 5/.160)
		same(t, "requests/s", r.RequestsPerS, 1/.160)
		same(t, "tokens per piece", r.TokensPerPiece, 5./4)
		same(t, "pieces per read", r.PiecesPerRead, 4./3)
		if r.Finish["stop"] != 1 || r.Routing != nil || r.StartDelay != nil {
			t.Errorf("finish %v, routing %v, start delay %v", r.Finish, r.Routing, r.StartDelay)
		}
	})
}

func TestPiecesCountWithoutUsage(t *testing.T) {
	inBubble(t, script(act{ms, token("a")}, act{ms, token("b")}, act{ms, stop + endMark}), func(t *testing.T, transport http.RoundTripper) {
		r := runBench(t, plain(t, transport))
		if r.OutputTokens != 2 || r.CountedByServer != 0 || r.Uncounted != 0 || r.InputLength != nil {
			t.Errorf("report: %+v", r)
		}
	})
}

func TestOurExtension(t *testing.T) {
	answer := script(
		act{ms, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}],\"trctl\":{\"model\":\"s\"}}\n\n"},
		// Half of a character has no text, but a model wrote it.
		act{ms, "data: {\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":null}],\"trctl\":{\"model\":\"l\"}}\n\n"},
		act{ms, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"trctl\":{\"policy\":\"r-stitch\",\"models\":[\"s\",\"l\"],\"tokens\":{\"s\":3,\"l\":1},\"large_share\":0.25,\"provenance\":[[\"s\",3],[\"l\",1]]}}\n\n"},
		act{ms, endMark},
	)
	inBubble(t, answer, func(t *testing.T, transport http.RoundTripper) {
		cfg := plain(t, transport)
		cfg.Requests = 3
		r := runBench(t, cfg)
		if r.Routing == nil {
			t.Fatalf("no routing: %+v", r)
		}
		if x := r.Routing; x.Policy != "r-stitch" || x.Requests != 3 || x.LargeShare != .25 || len(x.Models) != 2 ||
			x.Models[0] != (ModelTokens{"s", 9, .75}) || x.Models[1] != (ModelTokens{"l", 3, .25}) {
			t.Errorf("routing: %+v", x)
		}
		if r.InterToken.Count != 3 {
			t.Errorf("%d gaps, want one a request", r.InterToken.Count)
		}
	})
}

func TestNotStreamed(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		if body := readAll(t, r); !strings.Contains(body, `"stream":false`) || strings.Contains(body, "stream_options") {
			t.Errorf("body: %s", body)
		}
		wait(r.Context(), 100*ms)
		_, _ = w.Write([]byte(`{"choices":[{"message":{"content":"hello"},"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":20}}`))
	}
	inBubble(t, http.HandlerFunc(handler), func(t *testing.T, transport http.RoundTripper) {
		cfg := plain(t, transport)
		cfg.Stream = false
		r := runBench(t, cfg)
		if r.Succeeded != 1 || r.TTFT != nil || r.InterToken != nil || r.PerToken != nil || r.Finish["length"] != 1 {
			t.Fatalf("report: %+v", r)
		}
		same(t, "per user", spreadOf(t, "per user", r.PerUser).Mean, 200)
		same(t, "latency", r.Latency.Mean, 100)
	})
}

func TestFailures(t *testing.T) {
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}
	}
	tests := []struct {
		name   string
		answer http.HandlerFunc
		want   Failures
	}{
		{"429", status(429, `{"error":{"message":"too many","type":"rate_limit_error","param":null,"code":"queue_full"}}`), Failures{KindStatus, 429, "queue_full", 1, "too many"}},
		{"number as code", status(400, `{"object":"error","message":"bad field","type":"BadRequestError","code":400}`), Failures{KindStatus, 400, "400", 1, "bad field"}},
		{"string as error", status(404, `{"error":"model not found"}`), Failures{KindStatus, 404, "", 1, "model not found"}},
		{"page as error", status(502, "<html>\n  Bad\x1b[31m Gateway</html>"), Failures{KindStatus, 502, "", 1, "<html> Bad\uFFFD[31m Gateway</html>"}},
		{"no body", status(503, ""), Failures{KindStatus, 503, "", 1, ""}},
		{"redirect", status(307, ""), Failures{KindStatus, 307, "", 1, ""}},
		{"error in stream", script(act{ms, token("a")}, act{ms, "data: {\"error\":{\"message\":\"gone\",\"code\":\"model_unavailable\"}}\n\n" + endMark}), Failures{KindInBand, 0, "model_unavailable", 1, "gone"}},
		{"error event", script(act{ms, token("a")}, act{ms, "event: error\ndata: {\"message\":\"gone\"}\n\n" + endMark}), Failures{KindInBand, 0, "", 1, "gone"}},
		{"error beside choices", script(act{ms, "data: {\"choices\":[],\"error\":{\"message\":\"x\",\"type\":\"server_error\",\"code\":null}}\n\n" + endMark}), Failures{KindInBand, 0, "server_error", 1, "x"}},
		{"no JSON", script(act{ms, token("a") + "data: {\"choices\":[\n\n" + endMark}), Failures{KindMalformed, 0, "", 1, errJSON.Error() + ": {\"choices\":["}},
		{"wrong type", script(act{ms, "data: {\"choices\":3}\n\n" + endMark}), Failures{KindMalformed, 0, "", 1, errJSON.Error() + ": {\"choices\":3}"}},
		{"no end mark", script(act{ms, token("a") + stop}), Failures{KindCut, 0, "", 1, "the stream ended without its end mark [DONE]"}},
		{"nothing", script(), Failures{KindCut, 0, "", 1, "the stream ended without its end mark [DONE]"}},
		{"no finish reason", script(act{ms, token("a") + endMark}), Failures{KindCut, 0, "", 1, "the answer has no finish reason"}},
		{"no choice", script(act{ms, usage(1, 1) + endMark}), Failures{KindEmpty, 0, "", 1, "the answer has no choice or no token"}},
		{"no token", script(act{ms, stop + usage(1, 0) + endMark}), Failures{KindEmpty, 0, "", 1, "the answer has no choice or no token"}},
		{"connection cut in an answer", then(script(act{ms, token("a")}), cut), Failures{KindCut, 0, "", 1, "unexpected EOF"}},
		{"connection cut before an answer", cut, Failures{KindConnection, 0, "", 1, "EOF"}},
		{"too slow", script(act{ms, token("a")}, act{time.Hour, stop + endMark}), Failures{KindTimeout, 0, "", 1, "context deadline exceeded"}},
		{"never", script(act{time.Hour, stop + endMark}), Failures{KindTimeout, 0, "", 1, "context deadline exceeded"}},
		{"endless event", script(act{ms, "data: " + strings.Repeat("x", maxEventBytes)}), Failures{KindTooLarge, 0, "", 1, errEventSize.Error()}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, test.answer, func(t *testing.T, transport http.RoundTripper) {
				cfg := plain(t, transport)
				cfg.Timeout = time.Minute
				r := runBench(t, cfg)
				if r.Succeeded != 0 || r.Failed != 1 || r.ErrorRate != 1 || r.OutputTokens != 0 || r.Latency != nil || r.TTFT != nil {
					t.Errorf("a failure was counted as something else: %+v", r)
				}
				if len(r.Failures) != 1 || r.Failures[0] != test.want {
					t.Errorf("failures: %+v\nwant %+v", r.Failures, test.want)
				}
			})
		})
	}
}

// A stream whose connection stays open after the end mark is whole; what the end
// mark's time says counts, not that of the connection.
func TestConnectionStaysOpenAfterTheEndMark(t *testing.T) {
	inBubble(t, script(act{ms, token("a") + stop + endMark}, act{time.Hour, ""}), func(t *testing.T, transport http.RoundTripper) {
		r := runBench(t, plain(t, transport))
		if r.Succeeded != 1 {
			t.Fatalf("report: %+v", r.Failures)
		}
		same(t, "latency", r.Latency.Mean, 1)
	})
}
