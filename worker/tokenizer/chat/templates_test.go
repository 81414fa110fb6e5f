package chat

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// templatesEnv names a folder of chat templates with what testdata/renders.py has
// written beside them.
const templatesEnv = "TRCTL_TEST_TEMPLATES"

// TestReferenceTemplates compares renders of whole templates with the reference
// renderer's, for the templates in testdata and, if it is set, those of the folder.
func TestReferenceTemplates(t *testing.T) {
	folders := []string{"testdata"}
	if dir := os.Getenv(templatesEnv); dir != "" {
		folders = append(folders, dir)
	}
	for _, dir := range folders {
		paths, err := filepath.Glob(dir + "/*.jinja")
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s has no templates: %v", dir, err)
		}
		for _, path := range paths {
			name := strings.TrimSuffix(path, ".jinja")
			t.Run(filepath.Base(name), func(t *testing.T) { compareRenders(t, path, name+".renders.json") })
		}
	}
}

func compareRenders(t *testing.T, template, renders string) {
	source, err := os.ReadFile(template)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(renders)
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		renderCase
		Out    *string `json:"out"`
		Raised bool    `json:"raised"`
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	tpl, err := Parse(string(source), map[string]string{"bos_token": "<BOS>", "eos_token": "<EOS>"})
	if err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for i := range rows {
		r := &rows[i]
		c := r.conversation()
		c.Now = func() time.Time { return time.Date(2026, 3, 5, 0, 0, 0, 0, time.UTC) }
		got, err := tpl.Render(c)
		var refused *TemplateError
		switch {
		case r.Out == nil && r.Raised && (!errors.As(err, &refused) || refused.Message != r.Error),
			r.Out == nil && err == nil, r.Out != nil && (err != nil || got != *r.Out):
			if wrong++; wrong < 5 {
				want := "error: " + r.Error
				if r.Out != nil {
					want = *r.Out
				}
				t.Errorf("case %d: %v\n got %q\nwant %q", i, err, got, want)
			}
		}
	}
	t.Logf("%d renders, %d wrong", len(rows), wrong)
}
