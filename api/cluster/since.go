package cluster

import "encoding/json"

// sinceChoice is the version that came with Facts.Policies, Facts.Routers and
// Facts.Words, and with the special maps of deployments.
const sinceChoice = 2

// sinceLeftOut is the version that came with Facts.LeftOut.
const sinceLeftOut = 3

// sinceLateStart is the version that came with Start.Replicas.
const sinceLateStart = 3

// Since implements Later.
func (f Facts) Since() int {
	if f.LeftOut != nil {
		return sinceLeftOut
	}
	if f.Policies != nil || f.Routers != nil || f.Words != nil {
		return sinceChoice
	}
	return 1
}

// Before are the facts without what came with a version that not all control nodes speak.
func (f Facts) Before(spoken int) Facts {
	if spoken < sinceLeftOut {
		f.LeftOut = nil
	}
	if spoken < sinceChoice {
		f.Policies, f.Routers, f.Words = nil, nil, nil
	}
	return f
}

// Since implements Later.
func (r Report) Since() int { return sinceReports(r.Replicas) }

func sinceReports(list []ReplicaReport) int {
	v := 1
	for i := range list {
		v = max(v, list[i].Facts.Since())
	}
	return v
}

// Since implements Later.
func (s Start) Since() int {
	if len(s.Replicas) == 0 {
		return 1
	}
	return max(sinceLateStart, sinceReports(s.Replicas))
}

// Before is the start without what came with a version that not all control nodes speak.
func (s Start) Before(spoken int) Start {
	list := s.Replicas
	s.Replicas = nil
	if spoken < sinceLateStart {
		return s
	}
	for _, r := range list {
		r.Facts = r.Facts.Before(spoken)
		s.Replicas = append(s.Replicas, r)
	}
	return s
}

// Since implements Later. Earlier builds refuse the key, whatever it has.
func (d Deployment) Since() int {
	var keys map[string]json.RawMessage
	if json.Unmarshal(d.Settings, &keys) == nil {
		if _, ok := keys["special_map"]; ok {
			return sinceChoice
		}
	}
	return 1
}

// Since implements Later.
func (p Place) Since() int {
	v := 1
	for i := range p.Put {
		v = max(v, p.Put[i].Facts.Since())
	}
	for i := range p.Deployments {
		v = max(v, p.Deployments[i].Since())
	}
	return v
}
