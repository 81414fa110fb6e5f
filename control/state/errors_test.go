package state

import (
	"errors"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Codes and errors go both ways, and no error hides behind a more general one.
func TestCodes(t *testing.T) {
	for _, c := range codes() {
		if got := Code(c.errs[0]); got != c.code {
			t.Errorf("%v has code %q, want %q", c.errs[0], got, c.code)
		}
		err := Coded(c.code, "text")
		for _, want := range c.errs {
			if !errors.Is(err, want) {
				t.Errorf("code %s is no %v", c.code, want)
			}
		}
		if err.Error() != "text" || Code(err) != c.code {
			t.Errorf("code %s came back as %q %s", c.code, err, Code(err))
		}
	}
	if Code(errors.New("x")) != "" || Code(nil) != "" || Coded("x", "") != nil {
		t.Error("something unknown has a code")
	}
}

// A command that is repeated has the error that it had, of the same kind.
func TestRepeatedError(t *testing.T) {
	l := newLog(t)
	for range 2 {
		if err := l.apply(cluster.KindUseToken, "once", cluster.UseToken{ID: "t"}); !errors.Is(err, ErrTokenUnknown) || !errors.Is(err, ErrToken) {
			t.Errorf("error %v, want ErrTokenUnknown", err)
		}
	}
}

// A token admits its role, and no name that is or was taken.
func TestUseToken(t *testing.T) {
	l := newLog(t)
	l.must(cluster.KindPutNode, worker("w1"))
	l.must(cluster.KindPutNode, worker("gone"))
	l.must(cluster.KindRemoveNode, cluster.Name{Name: "gone"})
	l.must(cluster.KindPutToken, cluster.Token{ID: "t", Role: cluster.Worker, Hash: make([]byte, hashLength), Uses: 1, Expires: l.now.Add(time.Hour)})
	for _, c := range []struct {
		use  cluster.UseToken
		want error
	}{
		{cluster.UseToken{ID: "t", Node: "w2", Role: cluster.Control}, ErrTokenRole},
		{cluster.UseToken{ID: "t", Node: "w1", Role: cluster.Worker}, ErrExists},
		{cluster.UseToken{ID: "t", Node: "gone", Role: cluster.Worker}, ErrInvalid},
		{cluster.UseToken{ID: "t", Node: "w2", Role: cluster.Worker}, nil},
		{cluster.UseToken{ID: "t", Node: "w3", Role: cluster.Worker}, ErrTokenUsed},
	} {
		if err := l.apply(cluster.KindUseToken, "", c.use); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.use, err, c.want)
		}
	}
}
