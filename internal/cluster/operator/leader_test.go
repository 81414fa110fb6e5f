package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// electing is a control node that looks for a leader for a while in each call, and finds none
// before some time has passed. Then it gives its answer.
type electing struct {
	until  time.Time
	answer *cluster.Problem // nil for a success
	asked  [][]byte
}

func (e *electing) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	e.asked = append(e.asked, body)
	say := func(status int, v any) (*http.Response, error) {
		text, err := json.Marshal(v)
		return &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(text)), Request: r}, err
	}
	patience, elected := time.After(750*time.Millisecond), time.After(time.Until(e.until))
	select {
	case <-elected:
	case <-patience:
		return say(http.StatusServiceUnavailable, client.Problem(client.ErrNoLeader))
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if e.answer != nil {
		return say(http.StatusConflict, e.answer)
	}
	return say(http.StatusOK, cluster.ProposeReply{Index: 7})
}

// A change is asked for again, as the same one, while there is no leader, for as long as an
// election may take.
func TestElectionIsWaitedFor(t *testing.T) {
	conflict := client.Problem(state.ErrConflict)
	interrupted := errors.New("interrupted")
	revoke := func(ctx context.Context, c *Client) error {
		_, err := c.Propose(ctx, cluster.KindRevokeKey, "revoke/1", cluster.Name{Name: "x"})
		return err
	}
	for name, c := range map[string]struct {
		call     func(context.Context, *Client) error
		electing time.Duration
		answer   *cluster.Problem
		// gives and stops are when the caller's time is over, and when it is interrupted.
		gives, stops time.Duration
		want         error
		least, most  time.Duration
	}{
		"a leader is there":   {revoke, 0, nil, 0, 0, nil, 0, 0},
		"an election":         {revoke, 3 * time.Second, nil, 0, 0, nil, 3 * time.Second, 4 * time.Second},
		"a refusal":           {revoke, 0, &conflict, 0, 0, state.ErrConflict, 0, 0},
		"a refusal after one": {revoke, 2 * time.Second, &conflict, 0, 0, state.ErrConflict, 2 * time.Second, 3 * time.Second},
		"no majority":         {revoke, time.Hour, nil, 0, 0, client.ErrNoLeader, 5 * time.Second, 6 * time.Second},
		"no time left":        {revoke, time.Hour, nil, 2 * time.Second, 0, client.ErrNoLeader, 2 * time.Second, 2 * time.Second},
		"no time at all":      {revoke, time.Hour, nil, 100 * time.Millisecond, 0, context.DeadlineExceeded, 100 * time.Millisecond, 100 * time.Millisecond},
		"given up":            {revoke, time.Hour, nil, 0, 2 * time.Second, interrupted, 2 * time.Second, 2 * time.Second},
		"given up in a pause": {revoke, time.Hour, nil, 0, 800 * time.Millisecond, interrupted, 800 * time.Millisecond, 800 * time.Millisecond},
		"no request id": {func(ctx context.Context, c *Client) error {
			_, err := c.Propose(ctx, cluster.KindRevokeKey, "", cluster.Name{Name: "x"})
			return err
		}, 3 * time.Second, nil, 0, 0, client.ErrNoLeader, 0, time.Second},
		"a new key": {func(ctx context.Context, c *Client) error {
			_, err := c.CreateKey(ctx, KeyRequest{})
			return err
		}, 3 * time.Second, nil, 0, 0, client.ErrNoLeader, 0, time.Second},
		"a backup": {func(ctx context.Context, c *Client) error {
			_, err := c.Backup(ctx)
			return err
		}, 3 * time.Second, nil, 0, 0, nil, 3 * time.Second, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				if c.gives > 0 {
					var end context.CancelFunc
					ctx, end = context.WithTimeout(ctx, c.gives)
					defer end()
				}
				if c.stops > 0 {
					defer time.AfterFunc(c.stops, func() { stop(interrupted) }).Stop()
				}
				began := time.Now()
				node := &electing{until: began.Add(c.electing), answer: c.answer}
				err := c.call(ctx, &Client{rt: node, base: "http://control", close: func() error { return nil }})
				if !errors.Is(err, c.want) {
					t.Errorf("error %v, want %v", err, c.want)
				}
				if took := time.Since(began); took < c.least || took > c.most {
					t.Errorf("it took %s in %d calls, want %s to %s", took, len(node.asked), c.least, c.most)
				}
				for _, body := range node.asked[1:] {
					if !bytes.Equal(body, node.asked[0]) {
						t.Errorf("asked for %s, then for %s", node.asked[0], body)
					}
				}
			})
		})
	}
}
