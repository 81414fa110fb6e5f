package main

import (
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/cluster/lastseen"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// printPlan says where the memory of the pinned models goes, before the cluster is asked. Models
// on GPUs that were in quarantine when the cluster was seen last are left out: what they would
// take cannot be known without opening the GPU.
func (c *workerJoinCmd) printPlan(p process, cfg engine.Config, pins []cluster.Pin, gpus []cluster.GPU) error {
	cfg, out := c.planned(cfg, pins, gpus)
	for _, line := range out {
		fmt.Fprintln(p.err, line)
	}
	if len(cfg.Models) == 0 {
		return nil
	}
	plan, err := engine.MakePlan(cfg)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	fmt.Fprint(p.err, plan.String())
	return nil
}

// planned are the models that there is a plan of, and a line for each of the others.
func (c *workerJoinCmd) planned(cfg engine.Config, pins []cluster.Pin, gpus []cluster.GPU) (engine.Config, []string) {
	s, node := c.lastSeen()
	if s == nil || len(cfg.GPUs) != len(pins) || len(cfg.Models) != len(pins) {
		return cfg, nil
	}
	var lines []string
	var models []engine.Model
	var ordinals []int
	self := cluster.Node{ID: node, GPUs: gpus}
	for i := range pins {
		at := slices.IndexFunc(pins[i].GPUs, func(ordinal int) bool {
			g, _ := self.GPU(ordinal)
			_, held := s.QuarantineOf(node, g.UUID)
			return held
		})
		if at < 0 {
			models, ordinals = append(models, cfg.Models[i]), append(ordinals, cfg.GPUs[i])
			continue
		}
		lines = append(lines, fmt.Sprintf("GPU %d was in quarantine when the cluster was seen last; %s waits for it.", pins[i].GPUs[at], pins[i].Model))
	}
	cfg.Models, cfg.GPUs = models, ordinals
	return cfg, lines
}

// lastSeen is what the node of this command's directory has seen last, and its name; nil if
// that is nothing.
func (c *workerJoinCmd) lastSeen() (*state.State, string) {
	dir, err := c.dir(cluster.Worker)
	if err != nil {
		return nil, ""
	}
	saved, err := identity.Load(dir)
	if err != nil {
		return nil, "" // it has not joined yet, or will fail for that
	}
	s, _, err := lastseen.Read(dir, identity.Name{Cluster: saved.Cluster, Role: saved.Role, Node: saved.Node})
	if err != nil {
		return nil, ""
	}
	return s, saved.Node
}
