package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// spelled is a script of one token for each text.
func spelled(texts ...string) *sessiontest.Script {
	s := &sessiontest.Script{Finish: generate.FinishStop}
	for i, text := range texts {
		s.Tokens = append(s.Tokens, generate.TokenEvent{ID: int32(10 + i), Model: uint8(i % 2), Text: text, Bytes: []byte(text), Logprob: -1})
	}
	return s
}

// TestStopCases are reports of other servers' users, as requests. The entry here
// knows ids and texts of tokens but nothing of stops (B05).
func TestStopCases(t *testing.T) {
	alphabet := spelled(" H", " I", " J", " K", " L", " M", " N", " O", " P", " Q")
	thought := spelled("<think>", "17", "*", "23", "</think>", "391", "#", "##", "EN", "D", "###", " more")
	for _, tc := range []struct {
		name, path, fields string
		script             *sessiontest.Script
		text, finish       string
		completion         int
	}{
		{"B01 over several tokens", textPath, `"prompt":"A B C D E F G","temperature":0,"max_tokens":30,"stop":["K L M N O"]`, alphabet, " H I J ", "stop", 8},
		{"B01 string", textPath, `"prompt":"A","stop":"K L M N O"`, alphabet, " H I J ", "stop", 8},
		{"B03 thoughts", chatPath, `"stop":["###END###"],"chat_template_kwargs":{"enable_thinking":true}`, thought, "<think>17*23</think>391", "stop", 11},
		{"B04 held text is flushed", chatPath, `"stop":["P Q R"]`, alphabet, " H I J K L M N O P Q", "stop", 10},
		{"B04 at the limit", chatPath, `"stop":["L M N"],"max_tokens":6`, alphabet, " H I J K L M", "length", 6},
		{"B07 empty list", chatPath, `"stop":[]`, alphabet, " H I J K L M N O P Q", "stop", 10},
		{"null", chatPath, `"stop":null`, alphabet, " H I J K L M N O P Q", "stop", 10},
		{"four", chatPath, `"stop":["X","Y","Z"," J"]`, alphabet, " H I", "stop", 3},
		{"log-probabilities", chatPath, `"stop":["K L"],"logprobs":true`, alphabet, " H I J ", "stop", 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := &sessiontest.Entry{ID: "e1", Script: tc.script}
			f := start(t, nil, e)
			fields := `"model":"tiny",` + tc.fields
			if tc.path == chatPath {
				fields = hi + "," + tc.fields
			}
			resp, body := f.post(tc.path, `{`+fields+`,"stream":true,"stream_options":{"include_usage":true}}`)
			if resp.StatusCode != http.StatusOK {
				t.Fatal(body)
			}
			chunks := events(t, body)
			last, usage := chunks[len(chunks)-2], chunks[len(chunks)-1].Usage
			if got := joined(chunks, 0); got != tc.text || *last.Choices[0].FinishReason != tc.finish || usage.Completion != tc.completion {
				t.Errorf("text %q, finish %s, %d tokens", got, *last.Choices[0].FinishReason, usage.Completion)
			}
			_, body = f.post(tc.path, `{`+fields+`}`)
			for _, want := range []string{fmt.Sprintf(`"completion_tokens":%d`, tc.completion), `"finish_reason":"` + tc.finish + `"`} {
				if !strings.Contains(body, want) {
					t.Errorf("no %s in %s", want, body)
				}
			}
			if strings.Contains(tc.fields, "logprobs") && strings.Count(body, `"top_logprobs"`) != tc.completion {
				t.Errorf("log-probabilities: %s", body)
			}
			eventually(t, "the entry is let go", func() bool { return e.Active.Load() == 0 })
		})
	}
	f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: alphabet})
	for _, stop := range []string{`[""]`, `["","x"]`, `""`} {
		resp, body := f.post(chatPath, `{`+hi+`,"stop":`+stop+`}`)
		wantError(t, "B08 "+stop, resp, body, 400, "invalid_value", "stop")
	}
}

// TestChoices checks n (B54): every choice has its index and its end, they share
// one usage chunk, and the prompt counts once.
func TestChoices(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(5)}
	f := start(t, nil, e)
	_, body := f.post(chatPath, `{`+hi+`,"n":3,"seed":7,"stream":true,"stream_options":{"include_usage":true}}`)
	chunks := events(t, body)
	finishes, usages := map[int]int{}, 0
	roles := map[int]int{}
	for _, c := range chunks {
		if c.Usage != nil {
			usages++
		}
		for _, ch := range c.Choices {
			if ch.FinishReason != nil {
				finishes[ch.Index]++
			}
			if ch.Delta.Role != "" {
				roles[ch.Index]++
			}
		}
	}
	last := chunks[len(chunks)-1]
	if len(finishes) != 3 || finishes[0]+finishes[1]+finishes[2] != 3 || usages != 1 || last.Usage.Completion != 15 || last.Usage.Prompt != 3 || last.Usage.Total != 18 {
		t.Errorf("%v finishes, %d usages, %+v", finishes, usages, last.Usage)
	}
	for i := range 3 {
		if got := joined(chunks, i); got != e.Script.Text() || roles[i] != 1 {
			t.Errorf("choice %d: %q, %d roles", i, got, roles[i])
		}
	}
	seeds := map[uint64]bool{}
	for _, r := range e.Requests() {
		seeds[r.Sampling.Seed] = true
	}
	if len(seeds) != 3 || !seeds[7] {
		t.Errorf("seeds %v", seeds)
	}
	_, body = f.post(textPath, `{"model":"tiny","prompt":["a","b"],"n":2,"best_of":2,"max_tokens":1}`)
	if !strings.Contains(body, `"index":3`) || strings.Count(body, `"text":" w0"`) != 4 || !strings.Contains(body, `"prompt_tokens":6,"completion_tokens":4`) {
		t.Errorf("two prompts: %s", body)
	}
	small := start(t, func(c *Config) { c.MaxInFlight = 2 }, e)
	resp, body := small.post(chatPath, `{`+hi+`,"n":3}`)
	wantError(t, "more than fit", resp, body, 400, "invalid_value", "n")
}

// TestChoicesMove kills every stream of three choices after each token.
func TestChoicesMove(t *testing.T) {
	fields := `,"n":3,"stop":["w7 w8"],"stream":true,"stream_options":{"include_usage":true}`
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(12)}
	e.Edit = func(r *generate.Request, at int, ev *generate.Event) ([]*generate.Event, error) {
		if first := r.Resume; first != nil && at > len(first.Tokens) && at < 12 || first == nil && at > 0 {
			return nil, sessiontest.ErrKilled
		}
		return sessiontest.Pass(ev)
	}
	f := start(t, nil, e)
	_, body := f.post(chatPath, `{`+hi+fields+`}`)
	chunks := events(t, body)
	for i := range 3 {
		if got := joined(chunks, i); got != " w0 w1 w2 w3 w4 w5 w6 " {
			t.Errorf("choice %d: %q", i, got)
		}
	}
	if last := chunks[len(chunks)-1]; last.Usage == nil || last.Usage.Completion != 27 {
		t.Errorf("%+v", last)
	}
}

// TestEcho checks the echo of the prompt in both forms (B17, B49).
func TestEcho(t *testing.T) {
	s := spelled(" yes", " no")
	s.Prompt = []generate.TokenEvent{{ID: 5, Text: "Answer"}, {ID: 6, Text: ": é", Logprob: -0.5,
		Top: []generate.TopLogprob{{ID: 9, Text: "!", Bytes: []byte("!"), Logprob: -0.25}}}}
	f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: s})
	_, body := f.post(textPath, `{"model":"tiny","prompt":"Answer: é","max_tokens":1,"echo":true,"logprobs":1}`)
	want := `"text":"Answer: é yes","logprobs":{"tokens":["Answer",": é"," yes"],"token_logprobs":[null,-0.5,-1],` +
		`"top_logprobs":[null,{": é":-0.5,"!":-0.25},{" yes":-1}],"text_offset":[0,6,9]},"finish_reason":"length"`
	if !strings.Contains(body, want) || !strings.Contains(body, `"prompt_tokens":2,"completion_tokens":1`) {
		t.Errorf("got %s\nwant %s", body, want)
	}
	_, body = f.post(textPath, `{"model":"tiny","prompt":"Answer: é","max_tokens":0,"echo":true,"logprobs":1}`)
	want = `"text":"Answer: é","logprobs":{"tokens":["Answer",": é"],"token_logprobs":[null,-0.5],`
	if !strings.Contains(body, want) || !strings.Contains(body, `"prompt_tokens":2,"completion_tokens":0`) {
		t.Errorf("B17: %s", body)
	}
	_, body = f.post(textPath, `{"model":"tiny","prompt":"Answer: é","max_tokens":2,"echo":true,"stream":true,"n":2}`)
	chunks := events(t, body)
	for i := range 2 {
		if got := joined(chunks, i); got != "Answer: é yes no" {
			t.Errorf("choice %d: %q", i, got)
		}
	}
	resp, body := f.post(textPath, `{"model":"tiny","prompt":"x","max_tokens":0,"logprobs":1}`)
	wantError(t, "without echo", resp, body, 400, "invalid_value", "max_tokens")
}

// TestCachedTokens checks that what the entry took from its prefix cache is
// reported, once for all choices.
func TestCachedTokens(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(3)}
	e.Edit = func(_ *generate.Request, at int, ev *generate.Event) ([]*generate.Event, error) {
		if at == 0 {
			ev.Cached = 2
		}
		return sessiontest.Pass(ev)
	}
	f := start(t, nil, e)
	if _, body := f.post(chatPath, `{`+hi+`,"n":2}`); !strings.Contains(body, `"cached_tokens":2`) {
		t.Errorf("usage: %s", body)
	}
}

// TestParametersReachEntry checks that every parameter of sampling arrives, and
// that ids are compared with the vocabulary.
func TestParametersReachEntry(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)}
	f := start(t, nil, e)
	f.post(chatPath, `{`+hi+`,"min_p":0.5,"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.5,"logit_bias":{"7":-100,"3":1},`+
		`"min_tokens":2,"stop_token_ids":[9],"ignore_eos":true,"seed":5}`)
	if len(e.Requests()) != 1 {
		t.Fatal("no request")
	}
	r := e.Requests()[0]
	p := r.Sampling
	if p.MinP != 0.5 || p.PresencePenalty != 1 || p.FrequencyPenalty != -1 || p.RepetitionPenalty != 1.5 || len(p.LogitBias) != 2 ||
		p.LogitBias[0].ID != 3 || p.LogitBias[1].Value != -100 || p.MinTokens != 2 || len(p.StopIDs) != 1 || !r.IgnoreEOS || p.Seed != 5 {
		t.Errorf("%+v", r)
	}
	for fields, param := range map[string]string{
		`"logit_bias":{"191222999":-100}`: "logit_bias", // B42
		`"stop_token_ids":[1000]`:         "stop_token_ids",
		`"min_tokens":513`:                "min_tokens",
		`"min_tokens":10,"max_tokens":5`:  "min_tokens", // B23
		`"n":9`:                           "n",
		`"n":2,"best_of":3`:               "best_of",
	} {
		resp, body := f.post(chatPath, `{`+hi+`,`+fields+`}`)
		wantError(t, fields, resp, body, 400, "invalid_value", param)
	}
	if len(e.Requests()) != 1 {
		t.Error("a bad request reached the entry")
	}
}

// TestStallMoves has one of two entries fall silent in the middle of an answer.
func TestStallMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		s := sessiontest.Words(4)
		hung, good := &sessiontest.Entry{ID: "hung", Script: s, Gate: waitAt(2, never)}, &sessiontest.Entry{ID: "good", Script: s}
		f := &fixture{t: t, registry: prometheus.NewRegistry()}
		g, err := New(Config{
			Deployments: []session.Deployment{deploy(hung, good)}, Metrics: f.registry, Session: session.Config{StallAfter: 20 * time.Millisecond},
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			w := &recorder{ResponseRecorder: httptest.NewRecorder()}
			g.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", chatPath, strings.NewReader(`{`+hi+`,"stream":true}`)))
			if body := w.Body.String(); joined(events(t, body), 0) != s.Text() {
				t.Errorf("stream: %s", body)
			}
		}
		if got := f.metric("trctl_gateway_resubmissions_total", "reason=stalled"); got != 1 {
			t.Errorf("%g re-submissions", got)
		}
	})
}
