package workernode

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/cuda/faults"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
)

// A fault that the cluster does not take holds for the next process too, and is told by that one:
// by the same request, so that it undoes no release. Then the file is gone.
func TestFaultOutlivesProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		tell func(*Node)   // what the process does after the fault
		deaf bool          // the cluster takes it, and its answer is lost
		then func(w *town) // what happens before the next process
		held bool          // the GPU is in quarantine at the end
	}{
		"ends in order": {func(n *Node) { n.lastWords(over(t)) }, false, func(*town) {}, true},
		"is killed":     {func(n *Node) { _ = n.tellFaults(over(t)) }, false, func(*town) {}, true},
		"answer lost":   {func(n *Node) { _ = n.tellFaults(over(t)) }, true, func(*town) {}, true},
		"released": {func(n *Node) { _ = n.tellFaults(over(t)) }, true, func(w *town) {
			w.must(cluster.KindReleaseGPU, cluster.Name{Name: "GPU-a"})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, dir := newTown(t), t.TempDir()
			file := filepath.Join(dir, faultsFile)
			n, tie := w.idle(&notes{}, dir)
			n.keepFaults()
			w.outage(!tc.deaf)
			tie.deaf.Store(tc.deaf)
			n.condemned(faults.Device{UUID: "GPU-a"}, inventory.Event{Kind: inventory.XID, UUID: "GPU-a", Code: 79}, func() {})
			tc.tell(n)
			if _, err := os.Stat(file); err != nil {
				t.Fatal(err)
			}
			tc.then(w)
			log := &notes{}
			again, _ := w.idle(log, dir)
			if len(again.quarantined()) != 1 || len(log.about("an earlier process")) != 1 {
				t.Errorf("quarantines %v, log %q", again.quarantined(), log.about(""))
			}
			w.outage(false)
			_ = again.tellFaults(over(t))
			again.assign(again.State())
			if held := len(w.now().Quarantines) == 1; held != tc.held || (len(again.quarantined()) == 1) != tc.held {
				t.Errorf("in quarantine: %t, here %v, want %t", held, again.quarantined(), tc.held)
			}
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("the file is left: %v", err)
			}
		})
	}
}

// over is a context that has ended: a loop makes one round.
func over(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestDecodeFaults(t *testing.T) {
	fault := `{"gpu":"GPU-a","cause":"xid","xid":79,"request":"r"}`
	for text, says := range map[string]string{
		"": "", "[]": "", "[" + fault + "]": "",
		"[" + fault:         "unexpected end",
		"{}":                "cannot unmarshal",
		`[{"gpu":"a"}]`:     "missing",
		`[{"request":"a"}]`: "missing",
		"[" + strings.Repeat(fault+",", maxKeptFaults) + fault + "]":              "at most 64",
		`[{"gpu":"a","request":"` + strings.Repeat("x", 300) + `"}]`:              "too long",
		`[{"request":"a","gpu":"` + strings.Repeat("x", 300) + `"}]`:              "too long",
		`[{"request":"a","gpu":"b","reason":"` + strings.Repeat("x", 300) + `"}]`: "too long",
	} {
		if _, err := decodeFaults([]byte(text)); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%.60s: %v, want %q", text, err, says)
		}
	}
}

// A file that cannot be read keeps no worker from starting.
func TestDamagedFaults(t *testing.T) {
	for _, text := range []string{"[", strings.Repeat(" ", maxFaultsFile+1)} {
		w, dir, log := newTown(t), t.TempDir(), &notes{}
		if err := os.WriteFile(filepath.Join(dir, faultsFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, _ := w.idle(log, dir); len(n.quarantined()) != 0 || len(log.about("cannot be read")) != 1 {
			t.Errorf("quarantines %v, log %q", n.quarantined(), log.about(""))
		}
	}
}

func FuzzDecodeFaults(f *testing.F) {
	f.Add([]byte(`[{"gpu":"GPU-a","cause":"xid","xid":79,"reason":"it","seen":"2026-01-02T03:04:05Z","request":"r"}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := decodeFaults(text)
		if err != nil {
			return
		}
		kept, err := json.Marshal(list)
		if err != nil {
			t.Skip(err) // a time that JSON cannot have
		}
		same, err := decodeFaults(kept)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := json.Marshal(same); err != nil || !bytes.Equal(again, kept) {
			t.Errorf("%s, %v; want %s", again, err, kept)
		}
	})
}
