package cluster

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/protocol"
)

// laterName is a body with a field that came with version 9.
type laterName struct {
	Name  string `json:"name"`
	Extra string `json:"extra,omitempty"`
}

func (n laterName) Since() int {
	if n.Extra != "" {
		return 9
	}
	return 1
}

// A command carries the oldest version that can read it, and no older one is believed.
func TestCommandVersion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body any
		want int
	}{
		"of all versions": {Name{"x"}, 1},
		"not used":        {laterName{Name: "x"}, 1},
		"used":            {laterName{"x", "y"}, 9},
	} {
		made, err := NewCommand(KindDeleteDeployment, "", time.Time{}, c.body)
		if err != nil || made.V != c.want {
			t.Errorf("%s: version %d, %v; want %d", name, made.V, err, c.want)
		}
	}
	made := Command{V: 8, Kind: KindDeleteDeployment, Body: json.RawMessage(`{"name":"x","extra":"y"}`)}
	if err := made.Decode(new(laterName)); !errors.Is(err, ErrCommand) || !strings.Contains(err.Error(), "has version 8, and what it says came with version 9") {
		t.Errorf("an older version was believed: %v", err)
	}
	made.V = 9
	if err := made.Decode(new(laterName)); err != nil {
		t.Error(err)
	}
}

func TestCommandCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind Kind
		body string
		says string
	}{
		"good":          {KindDeleteDeployment, `{"name":"x"}`, ""},
		"later field":   {KindDeleteDeployment, `{"name":"x","extra":1}`, "extra"},
		"no body":       {KindDeleteDeployment, ``, "bad command"},
		"unknown kind":  {"dance", `{}`, `does not know the kind "dance"`},
		"no kind":       {"", `{}`, "does not know the kind"},
		"more than one": {KindDeleteDeployment, `{"name":"x"} {}`, "after the end"},
	} {
		err := (&Command{V: 1, Kind: c.kind, Body: json.RawMessage(c.body)}).Check()
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, ErrCommand) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: error %v, want %q", name, err, c.says)
		}
	}
}

func TestDecodeCommandVersions(t *testing.T) {
	t.Parallel()
	for v, says := range map[string]string{
		"1": "", "0": "has version 0, and this build speaks ", "-1": "has version -1, and this build speaks ",
		"1000": "has version 1000, and this build speaks ", `1000,"field":[]`: "has version 1000, and this build speaks ",
		`"x"`: "bad command", "1e99": "bad command", "null": "has version 0",
	} {
		_, err := DecodeCommand([]byte(`{"v":` + v + `,"kind":"revoke-key","time":"2026-01-02T03:04:05Z","body":{"name":"x"}}`))
		if says == "" && err != nil || says != "" && (!errors.Is(err, ErrCommand) || !strings.Contains(err.Error(), says)) {
			t.Errorf("version %s: error %v, want %q", v, err, says)
		}
	}
}

func TestSpeak(t *testing.T) {
	t.Parallel()
	for _, r := range []protocol.Range{{Oldest: 1, Newest: 1}, {Oldest: 1, Newest: 3}, {Oldest: 2, Newest: 3}} {
		var n Node
		if n.Speak(r); n.Speaks() != r {
			t.Errorf("%s became %s", r, n.Speaks())
		}
	}
	if r := (&Node{}).Speaks(); r.Valid() {
		t.Errorf("a node that says nothing speaks %s", r)
	}
}
