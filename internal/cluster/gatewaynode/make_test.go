package gatewaynode

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/membership"
)

// memberships is what a gossip says.
func memberships() map[string]membership.Member {
	return map[string]membership.Member{
		"busy": {State: membership.Alive, Load: cluster.Load{Live: 7, Waiting: 2}},
		"dead": {State: membership.Dead, Load: cluster.Load{Live: 1}},
	}
}

// withReplicas is a state with ready replicas; the model is the ID up to the dash.
func withReplicas(t *testing.T, list map[string]cluster.Facts) *state.State {
	t.Helper()
	s := new(state.State)
	apply := func(kind cluster.Kind, body any) {
		t.Helper()
		c, err := cluster.NewCommand(kind, "", time.Now(), body)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = state.Apply(s, s.Index+1, c); err != nil {
			t.Fatal(err)
		}
	}
	apply(cluster.KindInit, cluster.Cluster{ID: "c"})
	apply(cluster.KindPutNode, cluster.Node{ID: "w", Role: cluster.Worker, Addr: "127.0.0.1:1", Protocol: 1})
	for id, f := range list {
		model, _, _ := strings.Cut(id, "-")
		apply(cluster.KindPlace, cluster.Place{From: s.Placement, Put: []cluster.Replica{{ID: id, Model: model, Node: "w", TP: 1}}})
		r, _ := s.Replica(id)
		apply(cluster.KindReport, cluster.Report{Node: "w", Replicas: []cluster.ReplicaReport{{ID: id, Generation: r.Generation, Phase: cluster.Ready, Facts: f}}})
	}
	return s
}

// writeCertificate puts a new certificate and its key into crt and key of a directory,
// and returns its serial number.
func writeCertificate(t *testing.T, dir string) string {
	t.Helper()
	authority, err := identity.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := authority.PEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"crt": certificate, "key": key} {
		if err := os.WriteFile(dir+"/"+name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		// The clock of files may be coarse.
		later := time.Now().Add(time.Duration(len(text)) * time.Millisecond)
		if err := os.Chtimes(dir+"/"+name, later, later); err != nil {
			t.Fatal(err)
		}
	}
	return authority.Certificate.SerialNumber.String()
}

func breakFile(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(name, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
}
