package gatewaynode

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/gateway"
	"github.com/tokenrouter/tokenrouter/internal/apikey"
)

// A key that was made a moment ago is waited for, since whoever has it may be faster than
// the state. Others are refused, soon if they are no keys at all.
func TestFreshKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pepper := []byte("pepper")
		text, key, err := apikey.New(pepper)
		if err != nil {
			t.Fatal(err)
		}
		key.Created = time.Now()
		k := &keys{pepper: pepper}
		if _, err := k.Find(text); !errors.Is(err, gateway.ErrKeysUnknown) {
			t.Errorf("without a state: %v", err)
		}
		s := withReplicas(t, nil)
		k.follow(s)
		for wrong, within := range map[string]time.Duration{text: freshWithin, "": 0, "no key": 0, text[:len(text)-1]: 0} {
			began := time.Now()
			if _, err := k.Find(wrong); !errors.Is(err, gateway.ErrKey) || time.Since(began) != within {
				t.Errorf("%.5q: %v after %v, want %v", wrong, err, time.Since(began), within)
			}
		}
		var holder *gateway.Holder
		var asked conc.WaitGroup
		asked.Go(func() { holder, err = k.Find(text) })
		synctest.Wait()
		k.follow(s) // something else has changed
		synctest.Wait()
		c, cerr := cluster.NewCommand(cluster.KindPutKey, "", time.Now(), key)
		if cerr != nil {
			t.Fatal(cerr)
		}
		if s, cerr = state.Apply(s, s.Index+1, c); cerr != nil {
			t.Fatal(cerr)
		}
		k.follow(s)
		asked.Wait()
		if err != nil || holder.ID != key.ID {
			t.Errorf("the fresh key: %+v, %v", holder, err)
		}
		if c, cerr = cluster.NewCommand(cluster.KindRevokeKey, "", time.Now(), cluster.Name{Name: key.ID}); cerr != nil {
			t.Fatal(cerr)
		}
		if s, cerr = state.Apply(s, s.Index+1, c); cerr != nil {
			t.Fatal(cerr)
		}
		k.follow(s)
		began := time.Now()
		if _, err := k.Find(text); !errors.Is(err, gateway.ErrKey) || time.Since(began) != 0 {
			t.Errorf("revoked: %v after %v", err, time.Since(began))
		}
	})
}
