package control_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
)

// A watch has lines as often as its caller asks, within bounds, and says how often that is.
func TestWatchBeat(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	p := client.NewPeers(c.Credentials(cluster.Gateway, "g", nil), nil, nil)
	defer func() { _ = p.Close() }()
	for asked, want := range map[string]string{"": "1000", "&beat=250": "250", "&beat=1": "250", "&beat=400": "400", "&beat=60000": "1000", "&beat=x": ""} {
		ctx, cancel := context.WithCancel(t.Context())
		response, err := p.Do(ctx, "", c.Leader().Addr, http.MethodGet, cluster.PathWatch+"?since=0"+asked, nil)
		switch {
		case want == "":
			if !errors.Is(err, client.ErrBadRequest) {
				t.Errorf("%s: error %v", asked, err)
			}
		case err != nil:
			t.Errorf("%s: %v", asked, err)
		default:
			if got := response.Header.Get(client.BeatHeader); got != want {
				t.Errorf("%q: a line each %s ms, want %s", asked, got, want)
			}
			_ = response.Body.Close()
		}
		cancel()
	}
}
