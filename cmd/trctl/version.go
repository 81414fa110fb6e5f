package main

import (
	"encoding/json"
	"fmt"

	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
)

type versionCmd struct {
	Output string `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
}

func (v *versionCmd) Run(p process) error {
	build := buildinfo.Current()
	if v.Output == "json" {
		return writeJSON(p, build)
	}
	_, err := fmt.Fprintln(p.out, "trctl", build)
	return err
}

// writeJSON prints value as one indented document.
func writeJSON(p process, value any) error {
	enc := json.NewEncoder(p.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}
