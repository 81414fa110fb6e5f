package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/worker/router"
)

// awaitReport waits until a replica has reported what is wanted.
func (c *crewed) awaitReport(name, what string, ok func(*cluster.ReplicaReport) bool) {
	c.t.Helper()
	var last cluster.ReplicaReport
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		for _, e := range c.engines {
			for _, r := range e.Reports() {
				if r.ID == name {
					last = r
				}
			}
		}
		if ok(&last) {
			return
		}
		select {
		case <-c.changed:
		case <-time.After(5 * time.Millisecond):
		}
	}
	c.t.Fatalf("%s: waited for %s in vain: %s %q %v", name, what, last.Phase, last.Reason, last.Facts.Routers)
}

// A policy whose router network was not there when a replica was loaded has the replica
// started anew, one after the other, while requests go on; until then it does what it did
// before. What cannot be had is said.
func TestRouterOfALaterPolicy(t *testing.T) {
	list := seeded(questions(8, 100))
	net := writeRouter(t, router.R2R, 128, half())
	fresh := Policy{Name: "r2r", Router: net}
	answersUnder := func(p *Policy) [][]said {
		return answers(t, start(t, func(cfg *Config) {
			cfg.Device = "cpu"
			if p != nil {
				cfg.Deployments[0].Policy = *p
			}
		}), list, 8, nil)
	}
	old, want := answersUnder(nil), answersUnder(&fresh)
	c := newCrewed(t, 2, "0:s-a:tiny-s", "1:s-b:tiny-s", "1:l-a:tiny-l")
	c.await(cluster.Ready, "s-a", "s-b", "l-a")
	e := c.serve("s-a", "s-b")

	// Wrong networks.
	misfit := filepath.Join(t.TempDir(), "misfit")
	for _, ext := range []string{".json", ".safetensors"} {
		text, err := os.ReadFile(writeRouter(t, router.R2R, 64, half()) + ext)
		if err == nil {
			err = os.WriteFile(misfit+ext, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for file, says := range map[string]string{
		filepath.Join(t.TempDir(), "later"): "neither embedded",
		misfit:                              "does not fit tiny-s",
		writeRouter(t, router.CITER, 128, half()): "is a network of kind citer",
		"tiny-s-citer": "is a network of kind citer", // which is there already, for another policy
	} {
		left := cluster.LeftOut{Deployment: "tiny", Router: file}
		if file == "tiny-s-citer" {
			left.Router = "" // none is missing
		}
		c.groups[0].Policy = Policy{Name: "r2r", Router: file}
		c.assign()
		for _, name := range []string{"s-a", "s-b"} {
			c.awaitReport(name, says, func(r *cluster.ReplicaReport) bool {
				return r.Phase == cluster.Ready && strings.Contains(r.Reason, "deployment tiny: policy r2r: ") && strings.Contains(r.Reason, says) &&
					slices.Equal(r.Facts.LeftOut, []cluster.LeftOut{left})
			})
		}
	}

	c.groups[0].Policy = Policy{Name: "r-stitch", Threshold: TrioThreshold("r-stitch")}
	c.assign()
	for _, name := range []string{"s-a", "s-b"} {
		c.awaitReport(name, "no complaint", func(r *cluster.ReplicaReport) bool { return r.Reason == "" && r.Facts.LeftOut == nil })
	}
	c.holds["s-b"] = true
	renewed := func(r *cluster.ReplicaReport) bool {
		return r.Phase == cluster.Ready && r.Reason == "" && slices.Contains(r.Facts.Routers, net)
	}
	var once sync.Once
	got := answers(t, e, list, 4, func() {
		once.Do(func() {
			c.groups[0].Policy = fresh
			c.assign()
			c.awaitReport("s-a", "the network", renewed)
		})
	})
	for i := range got {
		if differs(got[i], old[i]) != "" && differs(got[i], want[i]) != "" {
			t.Errorf("request %d is answered under neither policy: %q", i, got[i][0].Text)
		}
	}
	c.awaitReport("s-b", "its turn", func(r *cluster.ReplicaReport) bool {
		return r.Phase == cluster.Ready && r.Reason == "" && !slices.Contains(r.Facts.Routers, net)
	})
	for i, got := range answers(t, c.serve("s-b"), list[:2], 2, nil) {
		if d := differs(got, old[i]); d != "" {
			t.Errorf("what is held has not the old policy: %s", d)
		}
	}
	delete(c.holds, "s-b")
	c.assign()
	c.awaitReport("s-b", "the network", renewed)
	for i, got := range answers(t, e, list, 8, nil) {
		if d := differs(got, want[i]); d != "" {
			t.Errorf("afterwards, request %d: %s", i, d)
		}
	}
}
