package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/policies"
)

// Every file under deploy/config is a valid configuration whose policy is that of
// its folder. Every policy has one for the embedded models, and the published pairs
// have theirs.
func TestConfigOfEveryPolicy(t *testing.T) {
	const root = "../../deploy/config"
	var found []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		found = append(found, path)
		set, err := readConfig(filepath.Join(root, path))
		if err == nil {
			err = validate(&set.Config)
		}
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return nil
		}
		folder := filepath.Dir(path)
		for _, dep := range set.Deployments {
			if dep.Policy.Name != folder {
				t.Errorf("%s: deployment %s has the policy %s", path, dep.Name, dep.Policy.Name)
			}
			if file := strings.TrimSuffix(filepath.Base(path), ".yaml"); dep.Name != file {
				t.Errorf("%s: the deployment's name is %s", path, dep.Name)
			}
		}
		if filepath.Base(path) == "tiny.yaml" && !policies.Scored(folder) {
			e, err := engine.Load(set.Config.Config)
			if err == nil {
				err = e.Close()
			}
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range policies.Names() {
		if name == "single" || name == "trace" {
			continue // not for serving
		}
		if !slices.Contains(found, name+"/tiny.yaml") {
			t.Errorf("there is no %s/tiny.yaml", name)
		}
	}
	for _, pair := range []string{
		"r2r/qwen3-0.6b-32b", "r2r/qwen3-0.6b-8b", "r2r/qwen3-1.7b-8b", "r2r/qwen3-4b-8b", "r2r/r1-distill-1.5b-32b",
		"citer/qwen2-1.5b-72b", "co-llm/llama2-7b-70b", "r-stitch/l1-1.5b-qwq-32b", "me/qwen3-0.6b-8b-32b",
	} {
		if !slices.Contains(found, pair+".yaml") {
			t.Errorf("there is no %s.yaml", pair)
		}
	}
}
