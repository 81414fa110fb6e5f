package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/worker/executor/cpuexec"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// start runs an engine until the test ends.
func start(t *testing.T, change func(*Config)) *Engine {
	t.Helper()
	cfg := Defaults()
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

// Limits that no executor can work with end New at once, rather than start a
// replica again and again: as faults of the configuration, or of the executor.
func TestImpossibleLimits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"page size":    {func(c *Config) { c.PageSize = 5000 }, "page_size: is 5000, must be at most 4096"},
		"pages":        {func(c *Config) { c.KVTokens = 1 << 40 }, "kv_tokens: is 1099511627776, must be at most 1073741824"},
		"hang after":   {func(c *Config) { c.HangAfter = -1 }, "hang_after: is negative"},
		"chunk tokens": {func(c *Config) { c.ChunkTokens = 1 << 20 }, "chunk_tokens: is 1048576, must be at most 49152"},
		"workers":      {func(c *Config) { c.Workers = 1 << 20 }, "workers: is 1048576, must be 1 to 1024"},
	} {
		cfg := Defaults()
		cfg.Device = "cpu"
		c.change(&cfg)
		e, err := New(cfg)
		if err == nil {
			err = e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want %s", name, err, c.says)
		}
	}
	for _, err := range []error{cpuexec.ErrConfig, cpuexec.ErrMemory, cudaexec.ErrConfig, cudaexec.ErrMemory} {
		if !permanent(fmt.Errorf("executor of m: %w", err)) {
			t.Errorf("%v would have a replica started again and again", err)
		}
	}
}

// said is one answer in a form to compare.
type said struct {
	Text   string
	IDs    []int32
	Models []string
	// Logprobs has the bits of every token's log-probability and alternatives.
	Logprobs []uint32
	End      End
}

// ask returns all answers to a request.
func ask(e *Engine, r Request) ([]said, error) {
	out := make([]said, max(r.N, 1))
	for tok, err := range e.Generate(context.Background(), r) {
		if err != nil {
			return nil, err
		}
		s := &out[tok.Choice]
		s.Text += tok.Text
		if tok.End != nil {
			s.End = *tok.End
			continue
		}
		s.IDs, s.Models = append(s.IDs, tok.ID), append(s.Models, tok.Model)
		if r.Logprobs {
			s.Logprobs = append(s.Logprobs, math.Float32bits(tok.Logprob))
			for _, a := range tok.Top {
				s.Logprobs = append(s.Logprobs, uint32(a.ID), math.Float32bits(a.Logprob))
			}
		}
	}
	return out, nil
}

// differs says how two lists of answers differ, apart from the moves.
func differs(got, want []said) string {
	for i := range want {
		a, b := got[i], want[i]
		a.End.Epoch, b.End.Epoch = 0, 0
		a.End.Cached, b.End.Cached = 0, 0
		if !reflect.DeepEqual(a, b) {
			return fmt.Sprintf("choice %d:\n got %q %v\nwant %q %v", i, a.Text, a.End, b.Text, b.End)
		}
	}
	return ""
}

// questions returns requests about the first n problems.
func questions(n, maxTokens int) []Request {
	var list []Request
	dec := json.NewDecoder(bytes.NewReader(models.Problems()))
	for range n {
		var p struct{ Question string }
		if dec.Decode(&p) != nil {
			break
		}
		list = append(list, Request{Model: "tiny", MaxTokens: maxTokens, Messages: []Message{{Role: "user", Content: p.Question}}})
	}
	return list
}

// few is how much a test has of something: less in the short form, which is for the race detector.
func few(short, full int) int {
	if testing.Short() {
		return short
	}
	return full
}

// seeded adds sampling to greedy requests.
func seeded(list []Request) []Request {
	temperature, topP := 0.8, 0.95
	out := make([]Request, len(list))
	for i, r := range list {
		seed := uint64(1000 + i)
		r.Temperature, r.TopP, r.Seed = &temperature, &topP, &seed
		out[i] = r
	}
	return out
}

// answers asks everything, several at a time. done is called after each answer
// and may be nil.
func answers(t *testing.T, e *Engine, list []Request, atOnce int, done func()) [][]said {
	t.Helper()
	out := make([][]said, len(list))
	group := pool.New().WithErrors().WithMaxGoroutines(atOnce)
	for i, r := range list {
		group.Go(func() (err error) {
			out[i], err = ask(e, r)
			if done != nil {
				done()
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return out
}

// stats returns the snapshot of every replica that runs.
func (e *Engine) stats() map[string]subservice.Stats {
	all := map[string]subservice.Stats{}
	for _, r := range e.replicas {
		if sub := r.current.Load(); sub != nil {
			all[r.name] = sub.Stats()
		}
	}
	return all
}

// awaitIdle waits until no replica holds a sequence, a slot or a page.
func awaitIdle(t *testing.T, e *Engine) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		busy := false
		for _, s := range e.stats() {
			busy = busy || s.Queued+s.Running+s.Parked+s.PagesHeld+s.Slots > 0
		}
		if !busy {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not idle: %+v", e.stats())
		}
	}
}

// TestSameBytesWhateverTheBatch asks the same greedy and seeded requests one by
// one and 16 at once, under two threshold vectors and two page sizes. Texts and
// provenance must be the same. It is void unless both models wrote at least 5 %.
func TestSameBytesWhateverTheBatch(t *testing.T) {
	greedy := questions(few(6, 50), 300)
	list := append(greedy, seeded(greedy)...)
	var want [][]said
	for _, page := range []int{16, 64} {
		for _, large := range []int{1, 4} {
			atOnce := []int{16}
			if want == nil {
				atOnce = []int{1, 16}
			}
			for _, c := range atOnce {
				t.Run(fmt.Sprintf("page %d, B=(1,%d), %d at once", page, large, c), func(t *testing.T) {
					e := start(t, func(cfg *Config) {
						cfg.PageSize = page
						cfg.Models[1].Threshold = large
					})
					got := answers(t, e, list, c, nil)
					if want == nil {
						want = got
						checkShares(t, got)
					}
					for i := range got {
						if d := differs(got[i], want[i]); d != "" {
							t.Errorf("request %d differs: %s", i, d)
						}
					}
					awaitIdle(t, e)
				})
			}
		}
	}
}

// checkShares fails a run in which one model hardly took part.
func checkShares(t *testing.T, got [][]said) {
	t.Helper()
	total := map[string]int{}
	all := 0
	for _, a := range got {
		for _, m := range a[0].Models {
			total[m]++
			all++
		}
	}
	for _, m := range []string{"tiny-s", "tiny-l"} {
		if share := float64(total[m]) / float64(all); share < 0.05 {
			t.Fatalf("void: %s wrote %.1f %% of %d tokens", m, 100*share, all)
		}
	}
}

// errKilled ends a replica's run in a test.
var errKilled = errors.New("killed by the test")

// kill ends the present run of a replica.
func (e *Engine) kill(name string) {
	for _, r := range e.replicas {
		if r.name == name {
			(*r.stop.Load())(errKilled)
		}
	}
}

// patient lets requests wait for entries however long a busy machine takes to start them anew.
func patient(e *Engine) *Engine {
	e.session.MaxAttempts, e.session.MaxMoves = 100, 100
	return e
}

// TestKilledReplicasChangeNothing kills entries and collaborators under load.
// Every request must end with the text and provenance of an undisturbed run,
// and some of them must have been moved.
func TestKilledReplicasChangeNothing(t *testing.T) {
	n := few(10, 60)
	list := seeded(questions(n, 300))
	for i := range list {
		list[i].Stop = []string{"</think>\n\nThe", "= 13"}
	}
	want := answers(t, start(t, nil), list, 16, nil)

	e := patient(start(t, func(cfg *Config) {
		cfg.Models[0].Replicas = 2
		cfg.Models[1].Replicas = 2
	}))
	victims := []string{"tiny-s-0", "tiny-l-1", "tiny-s-1", "tiny-l-0"}
	var mu sync.Mutex
	done, next := 0, 0
	got := answers(t, e, list, 12, func() {
		mu.Lock()
		defer mu.Unlock()
		if done++; done%(n/5) == 0 && next < len(victims) {
			e.kill(victims[next])
			next++
		}
	})
	moved := 0
	for i := range got {
		if got[i][0].End.Epoch > 1 {
			moved++
		}
		if d := differs(got[i], want[i]); d != "" {
			t.Errorf("request %d differs: %s", i, d)
		}
	}
	if moved == 0 {
		t.Error("void: no request was moved")
	}
	awaitIdle(t, e)
}

func TestLists(t *testing.T) {
	e, err := Load(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range e.Deployments() {
		names = append(names, d.Name)
	}
	for _, m := range e.Models() {
		names = append(names, m.Name)
	}
	if got := strings.Join(names, " "); got != "tiny tiny-s tiny-l tiny-s tiny-l" {
		t.Errorf("names: %s", got)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestErrors(t *testing.T) {
	e := start(t, nil)
	two := 2.5
	for name, tc := range map[string]struct {
		r    Request
		want error
	}{
		"model":      {Request{Model: "tinny", Prompt: "x"}, ErrModel},
		"no prompt":  {Request{Model: "tiny"}, ErrRequest},
		"two":        {Request{Model: "tiny", Prompt: "x", PromptIDs: []int32{1}}, ErrRequest},
		"max tokens": {Request{Model: "tiny", Prompt: "x", MaxTokens: 1 << 30}, ErrRequest},
		"min tokens": {Request{Model: "tiny", Prompt: "x", MaxTokens: 2, MinTokens: 3}, session.ErrSettings},
		"n":          {Request{Model: "tiny", Prompt: "x", N: 9}, session.ErrSettings},
		"min p":      {Request{Model: "tiny", Prompt: "x", MinP: two}, session.ErrSettings},
		"stop":       {Request{Model: "tiny", Prompt: "x", Stop: []string{""}}, session.ErrSettings},
		"bias":       {Request{Model: "tiny", Prompt: "x", LogitBias: map[int32]float32{1 << 30: 1}}, session.ErrSettings},
		"nothing":    {Request{Model: "tiny", Prompt: "x", PromptOnly: true}, session.ErrSettings},
	} {
		if _, err := ask(e, tc.r); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errKilled)
	for _, err := range e.Generate(ctx, questions(1, 5)[0]) {
		if !errors.Is(err, errKilled) {
			t.Errorf("a context that has ended: %v", err)
		}
	}
}

// TestLeave leaves loops early. Everything must be freed.
func TestLeave(t *testing.T) {
	e := start(t, nil)
	for i, r := range questions(12, 300) {
		r.N = 1 + i%3
		n := 0
		for _, err := range e.Generate(t.Context(), r) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n > i {
				break
			}
		}
	}
	awaitIdle(t, e)
}

// TestCloseEndsRequests closes an engine while a request runs.
func TestCloseEndsRequests(t *testing.T) {
	e, err := New(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	var last error
	for _, err := range e.Generate(t.Context(), Request{Model: "tiny", Messages: questions(1, 0)[0].Messages, IgnoreEOS: true}) {
		if last = err; last == nil {
			e.stop()
		}
	}
	if !errors.Is(last, ErrClosed) {
		t.Errorf("error %v", last)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	for _, err := range e.Generate(t.Context(), questions(1, 5)[0]) {
		if err == nil {
			t.Error("a closed engine answers")
		}
	}
}

// TestPausedCallers has callers that stop in the middle of their loop. Others
// must get their answers, and the paused ones theirs once they go on.
func TestPausedCallers(t *testing.T) {
	e := start(t, nil)
	r := questions(1, 900)[0]
	r.IgnoreEOS = true
	hold := make(chan struct{})
	var paused, waiting sync.WaitGroup
	callers := few(4, 20)
	texts := make([]string, callers)
	for i := range texts {
		waiting.Add(1)
		paused.Go(func() {
			n := 0
			for tok, err := range e.Generate(t.Context(), r) {
				if err != nil {
					t.Error(err)
					return
				}
				texts[i] += tok.Text
				if n++; n == 5 {
					waiting.Done()
					<-hold
				}
			}
		})
	}
	waiting.Wait()
	quick := answers(t, e, questions(5, 100), 5, nil)
	for _, a := range quick {
		if a[0].End.Completion == 0 {
			t.Error("an empty answer")
		}
	}
	close(hold)
	paused.Wait()
	for i := range texts {
		if texts[i] != texts[0] || len(texts[i]) < 500 {
			t.Errorf("caller %d: %d bytes", i, len(texts[i]))
		}
	}
	awaitIdle(t, e)
}
