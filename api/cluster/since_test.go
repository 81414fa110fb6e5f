package cluster

import (
	"encoding/json"
	"testing"
	"time"
)

// Commands that say what came with a later version have that version, and no others.
func TestSinceChoice(t *testing.T) {
	facts := Facts{Fingerprint: "f", Policies: []string{"me"}, Routers: []string{"r"}, Words: &Words{Plain: "p"}}
	if old := facts.Before(sinceChoice - 1); old.Since() != 1 || old.Fingerprint != "f" {
		t.Errorf("before: %+v", old)
	}
	if same := facts.Before(sinceChoice); same.Since() != sinceChoice {
		t.Errorf("with the version: %+v", same)
	}
	left := Facts{Policies: []string{"me"}, LeftOut: []LeftOut{{Deployment: "d"}}}
	if old := left.Before(sinceLeftOut - 1); old.Since() != sinceChoice || old.LeftOut != nil {
		t.Errorf("before: %+v", old)
	}
	if same := left.Before(sinceLeftOut); same.Since() != sinceLeftOut {
		t.Errorf("with the version: %+v", same)
	}
	late := Start{Node: Node{ID: "w"}, Replicas: []ReplicaReport{{ID: "a"}}}
	if old := late.Before(sinceLateStart - 1); old.Since() != 1 || old.ID != "w" {
		t.Errorf("before: %+v", old)
	}
	if same := late.Before(sinceLateStart); same.Since() != sinceLateStart {
		t.Errorf("with the version: %+v", same)
	}
	mapped := json.RawMessage(`{"special_map":{}}`)
	for name, c := range map[string]struct {
		kind Kind
		body any
		want int
	}{
		"report":                  {KindReport, Report{Replicas: []ReplicaReport{{ID: "a", Facts: Facts{Vocab: 5}}}}, 1},
		"report of policies":      {KindReport, Report{Replicas: []ReplicaReport{{ID: "a"}, {ID: "b", Facts: Facts{Policies: []string{"me"}}}}}, sinceChoice},
		"report of routers":       {KindReport, Report{Replicas: []ReplicaReport{{ID: "b", Facts: Facts{Routers: []string{"me"}}}}}, sinceChoice},
		"report of words":         {KindReport, Report{Replicas: []ReplicaReport{{ID: "b", Facts: Facts{Words: &Words{}}}}}, sinceChoice},
		"report of what is out":   {KindReport, Report{Replicas: []ReplicaReport{{ID: "b", Facts: left}}}, sinceLeftOut},
		"start":                   {KindPutNode, Start{Node: Node{ID: "w"}}, 1},
		"start of what serves":    {KindPutNode, Start{Replicas: []ReplicaReport{{ID: "a"}}}, sinceLateStart},
		"deployment":              {KindPutDeployment, Deployment{Settings: json.RawMessage(`{"allow_policy_override":true}`)}, 1},
		"deployment with a map":   {KindPutDeployment, Deployment{Settings: mapped}, sinceChoice},
		"placement":               {KindPlace, Place{Put: []Replica{{ID: "a"}}}, 1},
		"placement with facts":    {KindPlace, Place{Put: []Replica{{ID: "a", Facts: facts}}}, sinceChoice},
		"placement with a map":    {KindPlace, Place{Deployments: []Deployment{{}, {Settings: mapped}}}, sinceChoice},
		"settings without object": {KindPutDeployment, Deployment{Settings: json.RawMessage(`7`)}, 1},
	} {
		command, err := NewCommand(c.kind, "", time.Now(), c.body)
		if err != nil || command.V != c.want {
			t.Errorf("%s: version %d, want %d, %v", name, command.V, c.want, err)
		}
	}
}
