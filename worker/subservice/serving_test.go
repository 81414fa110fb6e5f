package subservice

import (
	"bytes"
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
)

// fed is the number of tokens that each model has fed so far.
func (c *cluster) fed() (small, large uint64) {
	return c.hosts["m0-0"].sub.Stats().Tokens, c.hosts["m1-0"].sub.Stats().Tokens
}

// The second turn of a conversation prefills only its new tokens, on the small
// and on the large model, and says so.
func TestSecondTurnPrefillsOnlyNewTokens(t *testing.T) {
	c := startCluster(t, pair("random", 0.5))
	first := request(5, 40)
	k, _ := c.open("m0-0", first)
	o := c.read(k, 0)
	c.awaitIdle()
	smallBefore, largeBefore := c.fed()

	second := request(6, 8)
	second.PromptIDs = slices.Clone(first.PromptIDs)
	for _, token := range o.Tokens {
		second.PromptIDs = append(second.PromptIDs, token.ID)
	}
	second.PromptIDs = append(second.PromptIDs, 1, 2, 3)
	k, _ = c.open("m0-0", second)
	got := c.read(k, 0)
	want := straight(t, pair("random", 0.5), second)
	if !slices.Equal(got.Tokens, want.Tokens) {
		t.Errorf("\n got %v\nwant %v", got.Tokens, want.Tokens)
	}
	c.awaitIdle()
	small, large := c.fed()
	history := len(first.PromptIDs) + len(o.Tokens)
	// Whole pages of 4 are kept; the last token of an answer was never fed, and a
	// model may lack what the other wrote last.
	if got.Cached < history-8 {
		t.Errorf("%d of %d tokens came from the cache", got.Cached, history)
	}
	bound := uint64(3 + 8 + 8 + 2*len(got.Tokens))
	if d := small - smallBefore; d > bound {
		t.Errorf("small fed %d tokens, at most %d are new", d, bound)
	}
	if d := large - largeBefore; d > bound || d == 0 {
		t.Errorf("large fed %d tokens, at most %d are new", d, bound)
	}
}

// Requests under different salts do not see each other's pages.
func TestSaltsSeparate(t *testing.T) {
	c := startCluster(t, pair("random", 0))
	for i, tc := range []struct {
		salt   byte
		cached bool
	}{{1, false}, {2, false}, {1, true}} {
		req := request(uint64(i+1), 4)
		req.PromptIDs = []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
		req.Salt = bytes.Repeat([]byte{tc.salt}, 32)
		k, _ := c.open("m0-0", req)
		if o := c.read(k, 0); (o.Cached > 0) != tc.cached {
			t.Errorf("request %d: %d cached tokens, want some: %t", i, o.Cached, tc.cached)
		}
	}
	c.awaitIdle()
}

// A pool that holds only a few of the requests at a time changes no answer. How
// many of them meet depends on the machine, so the load is repeated until one was
// preempted.
func TestSmallPoolChangesNothing(t *testing.T) {
	const n, rounds = 20, 20
	for name, l := range map[string]layout{"random": pair("random", 0.4), "large keeps the turn": pair("r-stitch", 0.05)} {
		t.Run(name, func(t *testing.T) {
			l.pages = 40 // of 4 slots: two requests of the longest kind
			c := startCluster(t, l)
			for round := range rounds {
				crowd(t, c, l, uint64(round*n), n)
				if c.hosts["m0-0"].sub.Stats().Preemptions > 0 {
					return
				}
			}
			t.Errorf("void: nothing was preempted: %+v", c.hosts["m0-0"].sub.Stats())
		})
	}
}

// crowd serves n requests at once, whose numbers follow after, and compares each
// with the same request alone.
func crowd(t *testing.T, c *cluster, l layout, after uint64, n int) {
	t.Helper()
	var calls []*call
	var reqs []*generate.Request
	for i := range n {
		req := request(after+uint64(i+1), int32(40+i))
		k, _ := c.open("m0-0", req)
		calls, reqs = append(calls, k), append(reqs, req)
	}
	group := pool.New()
	got := make([]outcome, len(calls))
	for i, k := range calls {
		group.Go(func() { got[i] = c.read(k, 0) })
	}
	group.Wait()
	for i := range got {
		if want := straight(t, l, reqs[i]); !slices.Equal(got[i].Tokens, want.Tokens) {
			t.Errorf("request %d:\n got %v (%v)\nwant %v", reqs[i].ID, got[i].Tokens, got[i].Err, want.Tokens)
		}
	}
	c.awaitIdle()
}

// With echo the prompt comes back, scored if log-probabilities are wanted, also
// when nothing is generated.
func TestEcho(t *testing.T) {
	for _, tc := range []struct {
		name      string
		logprobs  int32
		maxTokens int32
	}{{"text", -1, 5}, {"text alone", -1, 0}, {"scored", 2, 5}, {"scored alone", 2, 0}} {
		t.Run(tc.name, func(t *testing.T) {
			c := startCluster(t, pair("random", 0.3))
			for _, n := range []int{1, 2, 70, 300} { // below and above a chunk of 32, and an event of 256
				req := request(uint64(n), tc.maxTokens)
				req.Echo, req.Sampling.Logprobs = true, tc.logprobs
				req.PromptIDs = make([]int32, n)
				for i := range req.PromptIDs {
					req.PromptIDs[i] = int32(i*7%500 + 1)
				}
				k, resp := c.open("m0-0", req)
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("status %d", resp.StatusCode)
				}
				o := c.read(k, 0)
				if len(o.Echo) != n || len(o.Tokens) != int(tc.maxTokens) || o.Finish != generate.FinishLength {
					t.Fatalf("prompt of %d: %d tokens back, %d generated, finish %d", n, len(o.Echo), len(o.Tokens), o.Finish)
				}
				for i, token := range o.Echo {
					scored := tc.logprobs >= 0 && i > 0
					if token.ID != req.PromptIDs[i] || (token.Logprob != 0) != scored || scored && len(token.Top) != 2 || math.IsInf(float64(token.Logprob), 0) {
						t.Errorf("prompt token %d is %+v", i, token)
					}
				}
			}
			c.awaitIdle()
		})
	}
}

// The client's stop ids end an answer whichever model writes them; ignore_eos
// leaves the checkpoint's out.
func TestStopIDs(t *testing.T) {
	l := pair("random", 0.5)
	c := startCluster(t, l)
	plain := request(2, 40)
	k, _ := c.open("m0-0", plain)
	whole := c.read(k, 0)
	c.awaitIdle()
	for _, model := range []uint8{0, 1} {
		at := slices.IndexFunc(whole.Tokens, func(t generate.Token) bool { return t.Model == model })
		req := *plain
		req.ID = uint64(100 + model)
		req.Sampling.StopIDs = []int32{whole.Tokens[at].ID}
		k, _ := c.open("m0-0", &req)
		if o := c.read(k, 0); o.Finish != generate.FinishStop || !slices.Equal(o.Tokens, whole.Tokens[:at+1]) {
			t.Errorf("stop at a token of model %d: %v, finish %d", model, o.Tokens, o.Finish)
		}
	}
	c.awaitIdle()
}

// A parameter that the executor's check refuses names the field.
func TestSamplingIsChecked(t *testing.T) {
	c := startCluster(t, pair("random", 0.1))
	req := request(1, 5)
	req.Sampling.LogitBias = []sampling.Bias{{ID: testVocab + 5, Value: 1}}
	if _, resp := c.open("m0-0", req); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// stuckWriter is a gateway that stops reading.
type stuckWriter struct {
	*httptest.ResponseRecorder
	free chan struct{}
}

func (w stuckWriter) Write(b []byte) (int, error) {
	<-w.free
	return w.ResponseRecorder.Write(b)
}

// A gateway that does not read is held back: its sequence leaves the batch with
// its pages kept, and goes on with the same tokens once it reads again.
func TestSlowReaderIsHeld(t *testing.T) {
	l := layout{policy: "single", replicas: []int{1}, script: fakeexec.Hashed(testVocab - 1)}
	c := startCluster(t, l)
	req := request(1, 500)
	body, err := generate.EncodeRequest(req)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, generate.Path, bytes.NewReader(body))
	w := stuckWriter{httptest.NewRecorder(), make(chan struct{})}
	done := pool.New()
	done.Go(func() { c.hosts["m0-0"].sub.ServeHTTP(w, r) })

	c.await("held", func(_ *host, s Stats) bool { return s.Parked == 1 && s.Running == 0 })
	held := c.hosts["m0-0"].sub.Stats()
	if held.Committed > 2*maxStreamTokens || held.Slots != 1 {
		t.Errorf("held with %d tokens and %d slots", held.Committed, held.Slots)
	}
	// A neighbour is not disturbed.
	k, _ := c.open("m0-0", request(2, 20))
	if o := c.read(k, 0); len(o.Tokens) != 20 {
		t.Errorf("the neighbour got %d tokens", len(o.Tokens))
	}
	close(w.free)
	done.Wait()
	got := c.read(&call{events: generate.NewReader(w.Body)}, 0)
	want := straight(t, l, req)
	for i, token := range got.Tokens {
		if token != want.Tokens[i] {
			t.Fatalf("token %d is %v, want %v", i, token, want.Tokens[i])
		}
	}
	c.awaitIdle()
}

// A gateway of another version is told so before its request is looked at.
func TestGatewayVersions(t *testing.T) {
	c := startCluster(t, layout{policy: "single", replicas: []int{1}, script: fakeexec.Hashed(testVocab - 1)})
	id := uint64(0)
	for accept, want := range map[string]int{
		generate.Accept(): http.StatusOK,
		"":                http.StatusOK,
		generate.ContentType(protocol.GenerateNewest + 1): http.StatusNotAcceptable,
		generate.ContentType(protocol.GenerateOldest - 1): http.StatusNotAcceptable,
		"text/html": http.StatusNotAcceptable,
	} {
		id++
		body, err := generate.EncodeRequest(request(id, 3))
		if err != nil {
			t.Fatal(err)
		}
		if want != http.StatusOK {
			body = []byte("of another version")
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, generate.Path, bytes.NewReader(body))
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		c.hosts["m0-0"].sub.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q: status %d, want %d", accept, w.Code, want)
		}
		if text := w.Body.String(); want != http.StatusOK && !strings.Contains(text, generate.CodeVersion) {
			t.Errorf("%q: %s", accept, text)
		}
	}
	c.awaitIdle()
}
