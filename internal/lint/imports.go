package lint

import (
	"fmt"
	"path"
	"strings"
)

// Module is this module's path.
const Module = "github.com/tokenrouter/tokenrouter"

// importRule says what the packages under a folder may import of this module and
// of others. The longest matching folder counts.
type importRule struct {
	// folder is relative to the module's root; it holds for everything below it.
	folder string
	// own are folders of this module that may be imported, besides folder itself;
	// "*" allows all.
	own []string
	// foreign are module paths that may be imported; "*" allows all.
	foreign []string
}

// importRules are who may import whom. Tests are free.
func importRules() []importRule {
	all := []string{"*"}
	return []importRule{
		{"", all, all},
		{"api", nil, nil},
		{"policies", []string{"api/sampling", "api/routing", "internal/philox", "internal/near"}, []string{"github.com/expr-lang/expr"}},
		{"internal/philox", nil, nil},
		{"internal/near", nil, nil},
		{"worker/step", []string{"api/sampling"}, nil},
		{"worker/kv", []string{"worker/step"}, nil},
		{"worker/scheduler", []string{"worker/step", "worker/kv"}, nil},
		{"worker/peer", []string{"api/handoff", "api/protocol", "internal"}, all},
		// Executors are the one place under worker that sees the GPU.
		{"worker/executor", []string{"api/sampling", "worker/step", "worker/model", "worker/router", "worker/sampler", "cuda", "internal", "models"}, all},
		{"worker", []string{"api", "policies", "worker", "internal"}, all},
		{"gateway", []string{"api", "internal"}, all},
		{"control/state", []string{"api/cluster", "api/protocol"}, nil},
		{"control/planner", []string{"api/cluster", "control/state", "policies/threshold"}, nil},
		{"control/tuner", []string{"api/cluster", "control/state", "policies/threshold"}, nil},
		{"membership", []string{"api/cluster"}, all},
		{"models", nil, nil},
		{"models/catalogue", nil, []string{"github.com/goccy/go-yaml"}},
		{"cuda/tensor", nil, nil},
		{"cuda/ref", nil, nil},
	}
}

// only says that a foreign package may be imported below these folders alone.
type only struct {
	foreign string
	folders []string
}

func onlyRules() []only {
	return []only{
		{"github.com/labstack/echo", []string{"gateway"}},
		{"golang.org/x/net/http2", []string{"internal/h2"}},
		{"github.com/NVIDIA/go-nvml", []string{"cuda", "internal/doctor"}},
		{"github.com/alecthomas/kong", []string{"cmd"}},
		{"github.com/expr-lang/expr", []string{"policies"}},
	}
}

// Imports reports imports against the rules.
func Imports(f *File) []string {
	if f.Test {
		return nil
	}
	rule := ruleOf(f.Dir())
	var out []string
	for _, spec := range f.AST.Imports {
		target := unquoted(spec)
		bad := func(format string, args ...any) {
			out = append(out, fmt.Sprintf("%s: imports %s: %s", f.at(spec.Pos()), target, fmt.Sprintf(format, args...)))
		}
		own, isOwn := ownFolder(target)
		switch {
		case isOwn && !allowed(own, append([]string{rule.folder}, rule.own...)):
			bad("%s may import only %s of this module", rule.folder, strings.Join(rule.own, ", "))
		case !isOwn && !standard(target) && !allowed(target, rule.foreign):
			bad("%s keeps to the standard library", rule.folder)
		}
		for _, o := range onlyRules() {
			if within(target, o.foreign) && !allowed(f.Dir(), o.folders) {
				bad("only %s may", strings.Join(o.folders, ", "))
			}
		}
	}
	return out
}

// ruleOf is the rule of the longest folder that dir is in.
func ruleOf(dir string) importRule {
	var best importRule
	for _, r := range importRules() {
		if within(dir, r.folder) && len(r.folder) >= len(best.folder) {
			best = r
		}
	}
	return best
}

func ownFolder(target string) (string, bool) {
	if target == Module {
		return ".", true
	}
	return strings.CutPrefix(target, Module+"/")
}

// standard says that an import path is one of the standard library: its first
// element has no dot.
func standard(target string) bool {
	first, _, _ := strings.Cut(target, "/")
	return !strings.Contains(first, ".")
}

func allowed(target string, folders []string) bool {
	for _, folder := range folders {
		if folder == "*" || within(target, folder) {
			return true
		}
	}
	return false
}

// within says that target is folder or below it.
func within(target, folder string) bool {
	return folder == "" || target == folder || strings.HasPrefix(path.Clean(target), folder+"/")
}
