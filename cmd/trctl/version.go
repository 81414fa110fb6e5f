package main

import (
	"encoding/json"
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
)

type versionCmd struct {
	Output string `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
}

// versions is what version -o json prints. Its JSON names are stable.
type versions struct {
	buildinfo.Build
	// Protocols are the versions that the build speaks between nodes of a cluster.
	Protocols struct {
		Cluster  protocol.Range `json:"cluster"`
		Handoff  protocol.Range `json:"handoff"`
		Generate protocol.Range `json:"generate"`
	} `json:"protocols"`
}

func (v *versionCmd) Run(p process) error {
	out := versions{Build: buildinfo.Current()}
	of := &out.Protocols
	of.Cluster, of.Handoff, of.Generate = protocol.Cluster(), protocol.Handoff(), protocol.Generate()
	if v.Output == "json" {
		return writeJSON(p, out)
	}
	_, err := fmt.Fprintf(p.out, "trctl %s\nprotocols: cluster %s, hand-off %s, generate %s\n", out.Build, of.Cluster, of.Handoff, of.Generate)
	return err
}

// writeJSON prints value as one indented document.
func writeJSON(p process, value any) error {
	enc := json.NewEncoder(p.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}
