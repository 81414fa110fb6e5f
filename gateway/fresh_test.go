package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// deciders are a Source: they decide what a gateway is to serve, and it hears of that late.
type deciders struct {
	t *testing.T
	g *Gateway
	// answers is how long they take to be read, err what they say; without an answer they
	// are silent.
	answers time.Duration
	err     error
	silent  bool

	mu sync.Mutex
	// index is that of what was acknowledged, heard that of what the gateway has been told.
	index, heard uint64
	newer        chan struct{}
	reads        int
}

func (d *deciders) Index(ctx context.Context) (uint64, error) {
	d.mu.Lock()
	index := d.index
	d.reads++
	d.mu.Unlock()
	wait := d.answers
	if d.silent {
		wait = time.Hour
	}
	select {
	case <-time.After(wait):
		return index, d.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (d *deciders) Await(ctx context.Context, index uint64) error {
	for {
		d.mu.Lock()
		heard, newer := d.heard, d.newer
		d.mu.Unlock()
		if heard >= index {
			return nil
		}
		select {
		case <-newer:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// acknowledge says to an operator that a deployment was made; told is called when the
// gateway is to hear of it.
func (d *deciders) acknowledge(name string, entries ...session.Entry) (told func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.index++
	index := d.index
	return func() {
		made := deploy(entries...)
		made.Name = name
		if err := d.g.Apply([]session.Deployment{deploy(), made}); err != nil {
			d.t.Error(err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.heard = index
		close(d.newer)
		d.newer = make(chan struct{})
	}
}

func (d *deciders) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reads
}

// decided starts a gateway that others decide for.
func decided(t *testing.T, d *deciders) *deciders {
	t.Helper()
	d.t, d.index, d.heard, d.newer = t, 1, 1, make(chan struct{})
	g, err := New(Config{Deployments: []session.Deployment{deploy()}, Source: d})
	if err != nil {
		t.Fatal(err)
	}
	d.g = g
	return d
}

// ask sends one request, and says how long it took.
func (d *deciders) ask(ctx context.Context, method, path, body string) (*recorder, time.Duration) {
	w := &recorder{ResponseRecorder: httptest.NewRecorder()}
	began := time.Now()
	d.g.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body)))
	return w, time.Since(began)
}

// question is a request that names a model.
type question struct{ method, path, body string }

func questions(model string) map[string]question {
	return map[string]question{
		"get":        {http.MethodGet, pathModels + "/" + model, ""},
		"chat":       {http.MethodPost, pathChat, `{"model":"` + model + `","messages":[{"role":"user","content":"x"}]}`},
		"completion": {http.MethodPost, pathCompletions, `{"model":"` + model + `","prompt":"x"}`},
		"tokenize":   {http.MethodPost, pathTokenize, `{"model":"` + model + `","prompt":"x"}`},
		"detokenize": {http.MethodPost, pathDetokenize, `{"model":"` + model + `","tokens":[1]}`},
	}
}

// Who was told that a deployment is there finds it at a gateway that hears of it late. One
// without a replica is 503, as it will be for a while.
func TestReadYourWrites(t *testing.T) {
	for name, q := range questions("new") {
		for _, replicas := range []int{0, 1} {
			t.Run(fmt.Sprint(name, replicas), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := decided(t, &deciders{answers: 3 * time.Millisecond})
					var entries []session.Entry
					script := sessiontest.Words(2)
					script.Prompt = []generate.TokenEvent{{ID: 1, Text: "x"}}
					for range replicas {
						entries = append(entries, &sessiontest.Entry{ID: "e", Script: script})
					}
					timer := time.AfterFunc(200*time.Millisecond, d.acknowledge("new", entries...))
					defer timer.Stop()
					w, took := d.ask(t.Context(), q.method, q.path, q.body)
					want := http.StatusOK
					if replicas == 0 && name != "get" {
						want = http.StatusServiceUnavailable
					}
					if w.Code != want || took != 200*time.Millisecond || d.count() != 1 {
						t.Errorf("%d after %s and %d reads, want %d: %s", w.Code, took, d.count(), want, w.Body)
					}
					if want != http.StatusOK && (w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "no_capacity")) {
						t.Errorf("%v %s", w.Header(), w.Body)
					}
				})
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		d := decided(t, &deciders{})
		timer := time.AfterFunc(50*time.Millisecond, d.acknowledge("new"))
		defer timer.Stop()
		if w, took := d.ask(t.Context(), http.MethodGet, pathModels, ""); took != 50*time.Millisecond || !strings.Contains(w.Body.String(), `"new"`) {
			t.Errorf("the list after %s: %s", took, w.Body)
		}
	})
}

// What a gateway says of a name that it does not know, by what it can find out.
func TestUnknownModel(t *testing.T) {
	for name, c := range map[string]struct {
		answers time.Duration
		err     error
		silent  bool
		behind  bool
		status  int
		code    string
		takes   time.Duration
		// list is how long the list of models takes.
		list time.Duration
	}{
		"surely none":        {2 * time.Millisecond, nil, false, false, 404, "model_not_found", 2 * time.Millisecond, 2 * time.Millisecond},
		"behind":             {2 * time.Millisecond, nil, false, true, 503, "not_ready", freshWithin, freshWithin},
		"nobody decides":     {0, errors.New("no leader"), false, false, 404, "model_not_found", 0, 0},
		"nobody answers":     {0, nil, true, false, 404, "model_not_found", readWithin, readWithin},
		"nobody, and behind": {0, nil, true, true, 404, "model_not_found", readWithin, readWithin},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := decided(t, &deciders{answers: c.answers, err: c.err, silent: c.silent})
				if c.behind {
					d.acknowledge("new")
				}
				for kind, q := range questions("nonesuch") {
					w, took := d.ask(t.Context(), q.method, q.path, q.body)
					if w.Code != c.status || took != c.takes || !strings.Contains(w.Body.String(), c.code) {
						t.Errorf("%s: %d after %s: %s", kind, w.Code, took, w.Body)
					}
					if retry := w.Header().Get("Retry-After"); (retry != "") != (c.status == 503) {
						t.Errorf("%s: Retry-After %q", kind, retry)
					}
					<-time.After(time.Second) // nothing of it is left
				}
				w, took := d.ask(t.Context(), http.MethodGet, pathModels, "")
				if w.Code != 200 || took != c.list || !strings.Contains(w.Body.String(), `"tiny"`) {
					t.Errorf("list: %d after %s: %s", w.Code, took, w.Body)
				}
				// Models that are known cost nothing, and names that cannot be any either.
				reads := d.count()
				for _, path := range []string{pathModels + "/tiny", pathModels + "/" + strings.Repeat("x", 300)} {
					if w, took := d.ask(t.Context(), http.MethodGet, path, ""); w.Code == 503 || took != 0 || d.count() != reads {
						t.Errorf("%.20s: %d after %s and %d reads", path, w.Code, took, d.count()-reads)
					}
				}
			})
		})
	}
}

// While those who decide are away, requests for unknown names are answered at once, but for
// one batch each deafFor.
func TestUnknownModelsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := decided(t, &deciders{silent: true})
		began, asked, waited := time.Now(), 0, time.Duration(0)
		for time.Since(began) < 10*time.Second {
			w, took := d.ask(t.Context(), http.MethodGet, fmt.Sprintf("%s/none-%d", pathModels, asked), "")
			if w.Code != 404 || took > readWithin {
				t.Fatalf("%d after %s", w.Code, took)
			}
			asked, waited = asked+1, waited+took
			<-time.After(10 * time.Millisecond)
		}
		if want := int(10*time.Second/(deafFor+readWithin)) + 1; d.count() > want || asked < 500 {
			t.Errorf("%d requests, %d reads, want %d at most", asked, d.count(), want)
		}
	})
}

// A flood of unknown names costs those who decide a read each readEvery, and readBurst at
// the beginning. A deployment that is made in the midst of it is found all the same.
func TestFloodOfUnknownModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := decided(t, &deciders{answers: 2 * time.Millisecond})
		const names, lasts = 10_000, 2 * time.Second
		var all conc.WaitGroup
		var mu sync.Mutex
		statuses, longest := map[int]int{}, time.Duration(0)
		began := time.Now()
		for i := range names {
			all.Go(func() {
				<-time.After(lasts * time.Duration(i) / names)
				w, took := d.ask(t.Context(), http.MethodGet, fmt.Sprintf("%s/none-%d", pathModels, i), "")
				mu.Lock()
				defer mu.Unlock()
				statuses[w.Code]++
				longest = max(longest, took)
			})
		}
		for i := range 10 {
			all.Go(func() {
				<-time.After(lasts * time.Duration(i) / 10)
				name := fmt.Sprint("new-", i)
				timer := time.AfterFunc(60*time.Millisecond, d.acknowledge(name))
				defer timer.Stop()
				if w, took := d.ask(t.Context(), http.MethodGet, pathModels+"/"+name, ""); w.Code != 200 || took > freshWithin {
					t.Errorf("%s: %d after %s", name, w.Code, took)
				}
			})
		}
		all.Wait()
		took := time.Since(began)
		t.Logf("%d names in %s: %d reads, the longest wait %s, %v", names, took, d.count(), longest, statuses)
		if most := readBurst + int(took/readEvery); d.count() > most {
			t.Errorf("%d reads in %s, want %d at most", d.count(), took, most)
		}
		if statuses[404] != names || longest > freshWithin {
			t.Errorf("statuses %v, the longest wait %s", statuses, longest)
		}
	})
}

// All at the same moment: so many wait, with one more read, and the others come again.
func TestManyDoubters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := decided(t, &deciders{answers: 2 * time.Millisecond})
		var all conc.WaitGroup
		var mu sync.Mutex
		statuses := map[int]int{}
		for i := range 10_000 {
			all.Go(func() {
				w, _ := d.ask(t.Context(), http.MethodGet, fmt.Sprintf("%s/none-%d", pathModels, i), "")
				mu.Lock()
				defer mu.Unlock()
				statuses[w.Code]++
			})
		}
		all.Wait()
		if d.count() > 2 || statuses[404] < maxDoubters || statuses[404]+statuses[429] != 10_000 {
			t.Errorf("%d reads, statuses %v", d.count(), statuses)
		}
		if w, _ := d.ask(t.Context(), http.MethodGet, pathModels+"/none", ""); w.Code != 404 {
			t.Errorf("later: %d", w.Code)
		}
	})
}

// A read that began before a deployment was acknowledged does not count for who knows of it.
func TestReadsThatBeganBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := decided(t, &deciders{answers: 20 * time.Millisecond})
		var first conc.WaitGroup
		first.Go(func() {
			if w, took := d.ask(t.Context(), http.MethodGet, pathModels+"/new", ""); w.Code != 404 || took != 20*time.Millisecond {
				t.Errorf("before it was made: %d after %s", w.Code, took)
			}
		})
		<-time.After(10 * time.Millisecond)
		timer := time.AfterFunc(100*time.Millisecond, d.acknowledge("new"))
		defer timer.Stop()
		if w, took := d.ask(t.Context(), http.MethodGet, pathModels+"/new", ""); w.Code != 200 || took != 100*time.Millisecond || d.count() != 2 {
			t.Errorf("%d after %s and %d reads", w.Code, took, d.count())
		}
		first.Wait()
	})
}

// A client that goes away waits no more, and those that wait with it do.
func TestDoubterGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := decided(t, &deciders{answers: 20 * time.Millisecond})
		told := d.acknowledge("new")
		ctx, leave := context.WithCancel(t.Context())
		var all conc.WaitGroup
		for range 3 { // two make a read each, one waits for the second
			all.Go(func() {
				if w, took := d.ask(ctx, http.MethodGet, pathModels+"/new", ""); w.Body.Len() != 0 || took > 40*time.Millisecond {
					t.Errorf("who has gone: %s after %s", w.Body, took)
				}
			})
		}
		synctest.Wait()
		all.Go(func() {
			if w, took := d.ask(t.Context(), http.MethodGet, pathModels+"/new", ""); w.Code != 200 || took != 70*time.Millisecond {
				t.Errorf("who stays: %d after %s", w.Code, took)
			}
		})
		<-time.After(10 * time.Millisecond)
		leave()
		<-time.After(60 * time.Millisecond)
		told()
		all.Wait()
	})
}
