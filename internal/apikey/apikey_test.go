package apikey

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

func TestFind(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	pepper := []byte(strings.Repeat("p", PepperBytes))
	keys := map[string]cluster.Key{}
	texts := map[string]string{}
	for _, name := range []string{"good", "revoked", "expired", "dated", "other pepper"} {
		text, k, err := New(pepper)
		if err != nil {
			t.Fatal(err)
		}
		switch name {
		case "revoked":
			k.Revoked = true
		case "expired":
			k.Expires = now.Add(-time.Second)
		case "dated":
			k.Expires = now.Add(time.Second)
		case "other pepper":
			k.MAC = mac([]byte("q"), text)
		}
		if _, twice := keys[k.ID]; twice || strings.Contains(text[len(prefix)+idChars:], k.ID) {
			t.Fatalf("id %s", k.ID)
		}
		keys[k.ID], texts[name] = k, text
	}
	good := texts["good"]
	texts["empty"], texts["prefix alone"], texts["cut"], texts["longer"] = "", prefix, good[:len(good)-1], good+"A"
	texts["last character"] = good[:len(good)-1] + string(good[len(good)-1]^1)
	texts["first character"] = prefix + string(good[len(prefix)]^1) + good[len(prefix)+1:]
	ring := NewRing(pepper, maps.All(keys))
	for name, text := range texts {
		want := map[string]error{"good": nil, "dated": nil, "revoked": ErrRevoked, "expired": ErrExpired}
		err, listed := want[name]
		if !listed {
			err = ErrUnknown
		}
		if k, got := ring.Find(text, now); !errors.Is(got, err) || (got == nil) != (k.ID != "") {
			t.Errorf("%s: %q, error %v, want %v", name, k.ID, got, err)
		}
	}
}
