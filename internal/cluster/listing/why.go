package listing

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// whyReplica says why a replica does not serve, or not as it should; empty if it does.
func (f *Facts) whyReplica(r *cluster.Replica) string {
	n, ok := f.State.Node(r.Node)
	switch {
	case !ok:
		return "its node is gone"
	case n.Lost:
		return fmt.Sprintf("its node %s was not heard for %s", n.ID, f.ago(n.Since))
	case f.whyBarred(r) != "":
		return f.whyBarred(r)
	case n.Draining:
		return fmt.Sprintf("its node %s drains", n.ID)
	case r.Phase == cluster.Failed:
		return "it failed and will be started again: " + dash(r.Reason)
	case r.Draining:
		return "nothing wants it any more; it ends what it has"
	case r.Phase == cluster.Placed:
		return fmt.Sprintf("%s has not begun to start it yet", n.ID)
	case r.Phase == cluster.Starting:
		return "it loads its weights"
	case r.Phase == cluster.Stopped:
		return "it has stopped"
	}
	return ""
}

// whyDeployment says what keeps a deployment from being ready, nil if it is; faulty that
// no replica more would help.
func (f *Facts) whyDeployment(d *Deployment) (why []string, faulty bool) {
	var vocabulary, first string
	mapped := specialMap(d.Settings)
	for i, model := range d.Models {
		replicas := f.State.ReplicasOf(model)
		for _, r := range replicas {
			if r.LeavesOut(d.Name) {
				why = append(why, fmt.Sprintf("%s: %s serves without it: %s", model, r.ID, r.Reason))
			}
		}
		if d.Ready[i] < d.Wanted[i] {
			counted := 0
			for _, r := range replicas {
				reason := f.whyReplica(&r)
				if reason == "" || !r.Draining {
					counted++
				}
				if reason != "" {
					why = append(why, fmt.Sprintf("%s: %s: %s", model, r.ID, reason))
				}
			}
			if missing := d.Wanted[i] - counted; missing > 0 {
				why = append(why, fmt.Sprintf("%s: %s: %s", model, several(missing, "replica is", "replicas are")+" not placed", f.whyNoRoom(model)))
			}
		}
		for _, r := range replicas {
			switch own := r.Facts.Fingerprint; {
			case own == "" || mapped[model] != nil: // a worker that cannot map it says so
			case vocabulary == "":
				vocabulary, first = own, r.ID
			case own != vocabulary:
				faulty = true
				why = append(why, fmt.Sprintf("%s: the vocabulary of %s is not that of %s, so that they cannot write one answer together", model, r.ID, first))
			}
		}
	}
	if len(d.Models) > 0 && f.count(cluster.Gateway) == 0 {
		why = append(why, "there is no gateway, so that nobody can ask for it: trctl gateway join")
	}
	return why, faulty
}

// specialMap is that of a deployment's settings.
func specialMap(settings json.RawMessage) map[string][]string {
	var s struct {
		SpecialMap map[string][]string `json:"special_map"`
	}
	if json.Unmarshal(settings, &s) != nil {
		return nil // the workers say what is wrong
	}
	return s.SpecialMap
}

func several(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// count counts the nodes of a role that serve.
func (f *Facts) count(role cluster.Role) (n int) {
	for _, node := range f.State.AllNodes() {
		if node.Role == role && node.Serves() {
			n++
		}
	}
	return n
}

// whyNoRoom says why no worker takes one more replica of a model.
func (f *Facts) whyNoRoom(model string) string {
	var away, pinned, have, barred []string
	for id, n := range f.State.AllNodes() {
		if n.Role != cluster.Worker {
			continue
		}
		has := false
		for _, r := range f.State.ReplicasOf(model) {
			has = has || r.Node == id
		}
		switch {
		case !n.Serves():
			away = append(away, id)
		case len(n.Pins) > 0:
			pinned = append(pinned, id)
		case has:
			have = append(have, id)
		case len(n.GPUs) > 0 && len(f.ofNode(&n)) == len(n.GPUs):
			barred = append(barred, id)
		}
	}
	var parts []string
	if len(pinned) > 0 {
		parts = append(parts, strings.Join(pinned, ", ")+" took models of their own (--model)")
	}
	if len(have) > 0 {
		parts = append(parts, strings.Join(have, ", ")+" has one already")
	}
	if len(barred) > 0 {
		parts = append(parts, strings.Join(barred, ", ")+" may use none of its GPUs (trctl get gpus)")
	}
	if len(away) > 0 {
		parts = append(parts, strings.Join(away, ", ")+" drains or is lost")
	}
	if len(parts) == 0 {
		if f.count(cluster.Worker) > 0 {
			return "no worker has enough GPUs, or the next look will place it"
		}
		parts = append(parts, "there is no worker")
	}
	return strings.Join(parts, "; ") + ": trctl worker join --model " + model
}
