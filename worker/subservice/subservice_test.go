package subservice

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
)

// straight is the slow second implementation: one request, no batches, no
// hand-offs, just the policy's rules over the script.
func straight(t *testing.T, l layout, req *generate.Request) outcome {
	t.Helper()
	set, err := policies.New(l.policy, len(l.replicas), l.settings)
	if err != nil {
		t.Fatal(err)
	}
	script := l.script
	if script == nil {
		script = fakeexec.Hashed(testVocab)
	}
	decoder := loadTokenizer(t).NewDecoder(true)
	o := outcome{Prompt: req.PromptIDs}
	ids := slices.Clone(req.PromptIDs)
	turn := policies.Entry
	q := &policies.Req{ID: req.ID, PromptLen: len(req.PromptIDs), Sampling: &req.Sampling}
	if v, to := set.For(turn).Receive(q, &policies.Handoff{From: policies.Client}); v == policies.Bounce {
		turn = to
	}
	for {
		s := script(executor.SeqConfig{Sampling: req.Sampling, Model: uint8(turn)}, ids)
		q := &policies.Req{ID: req.ID, Self: turn, Owner: policies.Entry, PromptLen: len(req.PromptIDs), Out: ids[len(req.PromptIDs):], Sampling: &req.Sampling}
		d := make([]policies.Decision, 1)
		set.For(turn).Route(&policies.Batch{Reqs: []*policies.Req{q}}, &policies.Result{
			Token: []int32{s.Token}, Entropy: []float32{s.Entropy}, LogV: float32(math.Log(testVocab)), Kind: make([]policies.Kind, 1),
		}, d)
		if d[0].Keep {
			ids = append(ids, s.Token)
			o.Tokens = append(o.Tokens, generate.Token{ID: s.Token, Model: uint8(turn)})
			o.Text += decoder.Next(s.Token)
			switch {
			case s.Token == testVocab-1:
				o.Finish = generate.FinishStop
			case len(o.Tokens) == int(req.Sampling.MaxTokens):
				o.Finish = generate.FinishLength
			}
			if o.Finish != 0 {
				o.Text += decoder.Flush()
				return o
			}
		}
		turn = d[0].To
	}
}

func pair(policy string, threshold float64) layout {
	return layout{policy: policy, settings: policies.Settings{Threshold: &threshold, Trace: "0 1 drop, 2 1 keep, 3@1 1 keep, 4@1 1 keep, 5@1 0 keep, 9 1 drop"}, replicas: []int{1, 1}}
}

func layouts() map[string]layout {
	return map[string]layout{
		"r-stitch": pair("r-stitch", 0.6), "r-stitch, large keeps the turn": pair("r-stitch", 0.05),
		"random": pair("random", 0.3), "trace": pair("trace", 0),
		"me, two models":   {policy: "me", replicas: []int{1, 1}},
		"me, three models": {policy: "me", settings: policies.Settings{Weights: []float64{2, 3, 5}}, replicas: []int{1, 1, 1}},
		"request-level":    pair("request-level", 0.5),
		"trace, three models": {policy: "trace", replicas: []int{1, 1, 1}, settings: policies.Settings{
			Trace: "0 1 drop, 0@1 2 keep, 1@2 1 keep, 2@1 2 drop, 2@2 2 keep, 3@2 1 keep, 4@1 0 keep, 6 2 keep, 7@2 1 drop, 7@1 1 keep, 8@1 2 keep"}},
		"single": {policy: "single", replicas: []int{1}},
	}
}

// Many requests at once give what each gives alone in the straight-line
// implementation, and everything is free afterwards.
func TestAnswersEqualStraightLine(t *testing.T) {
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, l)
			var calls []*call
			var reqs []*generate.Request
			for i := range 24 {
				req := request(uint64(i+1), int32(1+i*3))
				k, resp := c.open("m0-0", req)
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("request %d: status %d", i, resp.StatusCode)
				}
				calls, reqs = append(calls, k), append(reqs, req)
			}
			for i, k := range calls {
				got, want := c.read(k, 0), straight(t, l, reqs[i])
				if !slices.Equal(got.Tokens, want.Tokens) || got.Text != want.Text || got.Finish != want.Finish {
					t.Errorf("request %d:\n got %v %q %d\nwant %v %q %d", i, got.Tokens, got.Text, got.Finish, want.Tokens, want.Text, want.Finish)
				}
			}
			c.awaitIdle()
		})
	}
}

// A request submitted again at any position, with any epoch, goes on with the
// same tokens, models and text.
func TestResumeAtEveryPosition(t *testing.T) {
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, l)
			req := request(7, 40)
			k, _ := c.open("m0-0", req)
			whole := c.read(k, 0)
			for n, owner := range whole.Owners {
				if n == len(whole.Tokens) {
					continue
				}
				again := *req
				again.ID = uint64(1000 + n)
				again.Epoch = uint32(n + 1)
				again.Resume = &generate.Resume{PromptIDs: whole.Prompt, Tokens: whole.Tokens[:n], Owner: owner}
				k, resp := c.open("m0-0", &again)
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("resume at %d: status %d", n, resp.StatusCode)
				}
				if rest := c.read(k, n); !slices.Equal(rest.Tokens, whole.Tokens[n:]) || rest.Finish != whole.Finish {
					t.Fatalf("resume at %d:\n got %v\nwant %v", n, rest.Tokens, whole.Tokens[n:])
				}
			}
			c.awaitIdle()
		})
	}
}

// TokenRouter paper, section 1.4: a returning request costs an append. Every
// page of a routed request is allocated once on each model, however often the
// turn goes back and forth.
func TestPaperSection1_4ParkedKeepsPages(t *testing.T) {
	l := pair("random", 0.5)
	c := startCluster(t, l)
	req := request(3, 60)
	k, _ := c.open("m0-0", req)
	o := c.read(k, 0)
	c.awaitIdle()
	small, large := c.hosts["m0-0"].sub.Stats(), c.hosts["m1-0"].sub.Stats()
	if small.Handoffs < 10 {
		t.Fatalf("void: only %d hand-offs", small.Handoffs)
	}
	bound := uint64((len(o.Prompt) + len(o.Tokens) + 3) / 4) // pages of 4 slots
	for name, s := range map[string]Stats{"small": small, "large": large} {
		if s.PageAllocs > bound {
			t.Errorf("%s allocated %d pages for %d positions, at most %d are needed", name, s.PageAllocs, len(o.Prompt)+len(o.Tokens), bound)
		}
	}
}

// Tokens committed at a collaborator reach the caller before it runs another
// step: the script of the large model waits until the token before was seen.
func TestProgressWithinOneStep(t *testing.T) {
	seen := make(chan struct{}, 100)
	hashed := fakeexec.Hashed(testVocab - 1)
	l := pair("r-stitch", 0.0)
	l.script = func(cfg executor.SeqConfig, ids []int32) fakeexec.Sampled {
		s := hashed(cfg, ids)
		s.Entropy = 1 // never sure: the turn goes to the large model and stays
		if cfg.Model == 1 && len(ids) > 6 {
			<-seen
		}
		return s
	}
	c := startCluster(t, l)
	k, _ := c.open("m0-0", request(1, 30))
	tokens := 0
	for tokens < 30 {
		e, err := k.events.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind != generate.EventTokens {
			continue
		}
		if len(e.Tokens) != 1 || e.Tokens[0].Model != 1 {
			t.Fatalf("event with %d tokens of model %d", len(e.Tokens), e.Tokens[0].Model)
		}
		tokens++
		seen <- struct{}{}
	}
	c.read(k, 30)
	c.awaitIdle()
}

// A caller that goes away in any state frees everything on both models.
func TestCancelFreesEverything(t *testing.T) {
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, l)
			for events := range 12 {
				k, _ := c.open("m0-0", request(uint64(events+1), 400))
				for range events {
					if e, err := k.events.Next(); err != nil || e.Kind == generate.EventFinish {
						break
					}
				}
				k.cancel()
			}
			c.awaitIdle()
		})
	}
}

// A newer epoch takes a request over; an older or equal one is refused.
func TestEpochs(t *testing.T) {
	gate := make(chan struct{})
	hashed := fakeexec.Hashed(testVocab - 1)
	l := pair("random", 0)
	l.script = func(cfg executor.SeqConfig, ids []int32) fakeexec.Sampled {
		<-gate
		return hashed(cfg, ids)
	}
	c := startCluster(t, l)
	req := request(9, 5)
	req.Epoch = 4
	old, _ := c.open("m0-0", req)
	close(gate)
	for _, epoch := range []uint32{3, 4} {
		again := *req
		again.Epoch = epoch
		if _, resp := c.open("m0-0", &again); resp.StatusCode != http.StatusConflict {
			t.Errorf("epoch %d after 4: status %d, want %d", epoch, resp.StatusCode, http.StatusConflict)
		}
	}
	again := *req
	again.Epoch = 5
	k, resp := c.open("m0-0", &again)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("epoch 5: status %d", resp.StatusCode)
	}
	if o := c.read(k, 0); o.Finish != generate.FinishLength {
		t.Errorf("epoch 5 ended with %+v", o)
	}
	if o := c.read(old, 0); o.Err != nil && o.Err.Code != generate.CodeStaleEpoch {
		t.Errorf("epoch 4 ended with %v", o.Err)
	}
	c.awaitIdle()
}

// A collaborator that dies during its turn costs nothing: the other one gets
// the whole request and the answer is the same.
func TestLostCollaborator(t *testing.T) {
	reached := make(chan struct{}, 1)
	hold := make(chan struct{})
	hashed := fakeexec.Hashed(testVocab - 1)
	l := pair("trace", 0)
	l.replicas = []int{1, 2}
	l.script = func(cfg executor.SeqConfig, ids []int32) fakeexec.Sampled {
		if cfg.Model == 1 && len(ids) == 6+4 {
			select {
			case reached <- struct{}{}:
				<-hold // the first collaborator stays in this step until it is told to stop
			default:
			}
		}
		return hashed(cfg, ids)
	}
	c := startCluster(t, l)
	req := request(4, 30) // its first choice is m1-0
	k, _ := c.open("m0-0", req)
	<-reached
	c.hosts["m1-0"].stop()
	close(hold)
	got, want := c.read(k, 0), straight(t, withScript(l, hashed), req)
	if !slices.Equal(got.Tokens, want.Tokens) {
		t.Errorf("\n got %v\nwant %v", got.Tokens, want.Tokens)
	}
	if c.hosts["m1-1"].sub.Stats().Committed == 0 {
		t.Error("void: the second collaborator wrote nothing")
	}
	c.awaitIdle()
}

func withScript(l layout, s fakeexec.Script) layout {
	l.script = s
	return l
}

func TestRefusals(t *testing.T) {
	c := startCluster(t, pair("random", 0.1))
	for _, tc := range []struct {
		name        string
		change      func(*generate.Request)
		status      int
		code, param string
	}{
		{"deployment", func(r *generate.Request) { r.Deployment = "none" }, http.StatusNotFound, generate.CodeNotFound, "model"},
		{"id past the vocabulary", func(r *generate.Request) { r.PromptIDs = []int32{testVocab} }, http.StatusBadRequest, generate.CodeInvalid, "prompt"},
		{"prompt past the context", func(r *generate.Request) { r.PromptIDs = make([]int32, 600) }, http.StatusBadRequest, generate.CodeContextLength, "prompt"},
		{"answer past the context", func(r *generate.Request) { r.Sampling.MaxTokens = 510 }, http.StatusBadRequest, generate.CodeContextLength, "max_tokens"},
		{"chat without a template", func(r *generate.Request) {
			r.Chat, r.PromptIDs, r.Messages = true, nil, []generate.Message{{Role: "user", Content: "hi"}}
		}, http.StatusBadRequest, generate.CodeInvalid, "messages"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := request(1, 5)
			tc.change(req)
			k, resp := c.open("m0-0", req)
			defer k.cancel()
			var e generate.Error
			if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tc.status || e.Code != tc.code || e.Param != tc.param {
				t.Errorf("status %d, error %+v", resp.StatusCode, e)
			}
		})
	}
	c.awaitIdle()
}

// The entry's own failure tells every caller, in a way that invites a retry.
func TestStopTellsCallers(t *testing.T) {
	started := make(chan struct{}, 1)
	hashed := fakeexec.Hashed(testVocab - 1)
	l := pair("random", 0.2)
	l.script = func(cfg executor.SeqConfig, ids []int32) fakeexec.Sampled {
		select {
		case started <- struct{}{}:
		default:
		}
		return hashed(cfg, ids)
	}
	c := startCluster(t, l)
	k, _ := c.open("m0-0", request(1, 500))
	<-started
	c.hosts["m0-0"].stop()
	for {
		e, err := k.events.Next()
		if err != nil {
			return // the stream was cut, which a gateway takes as a lost entry
		}
		if e.Kind == generate.EventError {
			if !e.Err.Retryable {
				t.Errorf("error %+v is not retryable", e.Err)
			}
			return
		}
		if e.Kind == generate.EventFinish {
			t.Fatal("void: the answer ended before the stop")
		}
	}
}
