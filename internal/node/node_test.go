package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sourcegraph/conc/pool"
	"go.uber.org/goleak"
)

// seeded adds sampling to greedy requests.
func seeded(list []ask) []ask {
	temperature, topP := 0.8, 0.95
	out := make([]ask, len(list))
	for i, a := range list {
		seed := 1000 + i
		a.Temperature, a.TopP, a.Seed = &temperature, &topP, &seed
		out[i] = a
	}
	return out
}

// answers asks everything, several at a time.
func (r *running) answers(list []ask, atOnce int) []answer {
	r.t.Helper()
	out := make([]answer, len(list))
	group := pool.New().WithErrors().WithMaxGoroutines(atOnce)
	for i, a := range list {
		group.Go(func() (err error) {
			out[i], err = r.chat(a)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// TestSameBytesWhateverTheBatch asks the same greedy and seeded requests one by
// one and 16 at once, under two threshold vectors and two page sizes. Texts and
// provenance must be the same. It is void unless both models wrote at least 5 %.
func TestSameBytesWhateverTheBatch(t *testing.T) {
	n := 50
	if testing.Short() {
		n = 8
	}
	greedy := questions(n, "tiny", 300)
	list := append(greedy, seeded(greedy)...)
	var want []answer
	for _, page := range []int{16, 64} {
		for _, large := range []int{1, 4} {
			atOnce := []int{16}
			if want == nil {
				atOnce = []int{1, 16}
			}
			for _, c := range atOnce {
				t.Run(fmt.Sprintf("page %d, B=(1,%d), %d at once", page, large, c), func(t *testing.T) {
					r := start(t, func(cfg *Config) {
						cfg.PageSize = page
						cfg.Models[1].Threshold = large
					})
					got := r.answers(list, c)
					if want == nil {
						want = got
						checkShares(t, got)
					}
					for i := range got {
						if got[i].Text != want[i].Text || got[i].Provenance != want[i].Provenance || got[i].Finish != want[i].Finish {
							t.Errorf("request %d differs:\n got %q %s\nwant %q %s", i, got[i].Text, got[i].Provenance, want[i].Text, want[i].Provenance)
						}
					}
					r.awaitIdle()
				})
			}
		}
	}
}

// checkShares fails a run in which one model hardly took part.
func checkShares(t *testing.T, got []answer) {
	t.Helper()
	total := map[string]int{}
	all := 0
	for _, a := range got {
		for m, n := range a.Tokens {
			total[m] += n
			all += n
		}
	}
	for _, m := range []string{"tiny-s", "tiny-l"} {
		if share := float64(total[m]) / float64(all); share < 0.05 {
			t.Fatalf("void: %s wrote %.1f %% of %d tokens", m, 100*share, all)
		}
	}
}

// TestCutStreamsFreeEverything cuts streams at random points. Pages, slots,
// sequences of both models and goroutines must come back.
func TestCutStreamsFreeEverything(t *testing.T) {
	n := 500
	if testing.Short() {
		n = 50
	}
	r := start(t, nil)
	list := questions(100, "tiny", 300)
	if _, err := r.chat(list[0]); err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	baseline := goleak.IgnoreCurrent()
	rng := rand.New(rand.NewPCG(1, 2))
	group := pool.New().WithErrors().WithMaxGoroutines(16)
	for i := range n {
		a, events := list[i%len(list)], rng.IntN(60)
		group.Go(func() error { return r.cut(a, events) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	r.awaitIdle()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(baseline); err != nil {
		t.Error(err)
	}
	if _, err := r.chat(list[0]); err != nil {
		t.Errorf("after the cuts: %v", err)
	}
}

// errKilled ends a replica's run in a test.
var errKilled = errors.New("killed by the test")

// kill ends the present run of a replica.
func (r *running) kill(name string) {
	for _, p := range r.replicas {
		if p.name == name {
			(*p.stop.Load())(errKilled)
		}
	}
}

// TestKilledReplicasChangeNothing kills entries and collaborators under load.
// Every request must end with the text and provenance of an undisturbed run,
// and some of them must have been moved.
func TestKilledReplicasChangeNothing(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 20
	}
	list := seeded(questions(n, "tiny", 300))
	quiet := start(t, nil)
	want := quiet.answers(list, 16)

	r := start(t, func(cfg *Config) {
		cfg.Models[0].Replicas = 2
		cfg.Models[1].Replicas = 2
	})
	victims := []string{"tiny-s-0", "tiny-l-1", "tiny-s-1", "tiny-l-0"}
	var mu sync.Mutex
	done, next := 0, 0
	got := make([]answer, len(list))
	group := pool.New().WithErrors().WithMaxGoroutines(12)
	for i, a := range list {
		group.Go(func() (err error) {
			got[i], err = r.chat(a)
			mu.Lock()
			defer mu.Unlock()
			if done++; done%(n/5) == 0 && next < len(victims) {
				r.kill(victims[next])
				next++
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for i := range got {
		if got[i].Epoch > 1 {
			moved++
		}
		if got[i].Text != want[i].Text || got[i].Provenance != want[i].Provenance {
			t.Errorf("request %d differs (epoch %d):\n got %q %s\nwant %q %s", i, got[i].Epoch, got[i].Text, got[i].Provenance, want[i].Text, want[i].Provenance)
		}
	}
	if moved == 0 {
		t.Error("void: no request was moved")
	}
	r.awaitIdle()
}

// TestBadRequestsDisturbNothing sends requests that must be refused, each with
// the field at fault, while good ones run.
func TestBadRequestsDisturbNothing(t *testing.T) {
	r := start(t, nil)
	good := questions(4, "tiny", 200)
	want := r.answers(good, 4)
	for _, c := range []struct{ name, body, param, code string }{
		{"no messages", `{"model":"tiny","messages":[]}`, "messages", ""},
		{"null content", `{"model":"tiny","messages":[{"role":"user","content":null}]}`, "messages", ""},
		{"invalid UTF-8", "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}", "", ""},
		{"max_tokens", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":1000000000}`, "max_tokens", ""},
		{"long prompt", `{"model":"tiny","messages":[{"role":"user","content":"` + strings.Repeat("1 ", 5000) + `"}]}`, "messages", "context_length_exceeded"},
		{"truncated", `{"model":"tiny","messages":[{"role":"user"`, "", ""},
		{"empty stop", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stop":[""]}`, "stop", ""},
		{"unknown bias", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"logit_bias":{"191222999":-100}}`, "logit_bias", ""},
		{"n", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"n":1000000}`, "n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, e := r.refused(c.body)
			if status != http.StatusBadRequest || !strings.HasPrefix(e.Param, c.param) || c.code != "" && e.Code != c.code {
				t.Errorf("status %d, error %+v", status, e)
			}
		})
	}
	if status, e := r.refused(`{"model":"tiney","messages":[{"role":"user","content":"hi"}]}`); status != http.StatusNotFound || e.Code != "model_not_found" {
		t.Errorf("unknown model: status %d, error %+v", status, e)
	}
	for i, got := range r.answers(good, 4) {
		if got.Text != want[i].Text {
			t.Errorf("request %d changed", i)
		}
	}
	r.awaitIdle()
}

// An assistant turn may have null content beside tool calls.
func TestNullContentBesideToolCalls(t *testing.T) {
	r := start(t, nil)
	resp, err := http.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(
		`{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"t?"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"t","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"12:00"},{"role":"user","content":"2 + 2?"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
}
