package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// edited is a copy of an embedded model with one text of one file replaced.
func edited(t *testing.T, file, old, replacement string) Model {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "other")
	if err := os.CopyFS(dir, os.DirFS("../models/tiny-s")); err != nil {
		t.Fatal(err)
	}
	if file != "" {
		path := filepath.Join(dir, file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), old) {
			t.Fatalf("%s has no %s", file, old)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(text), old, replacement, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Model{Name: "other", Dir: dir, Threshold: 1}
}

// Models that cannot write one answer together are refused with what differs.
func TestPairsThatDiffer(t *testing.T) {
	for _, tc := range []struct {
		name, file, old, replacement string
		errors                       []string // all in the error; none: it is accepted
		note                         string
	}{
		{name: "equal"},
		{"a token", "tokenizer.json", `"<think>"`, `"<thunk>"`, []string{"tiny-s and other", "749 ids", "id 747", `"<think>"`, `"<thunk>"`}, ""},
		{"an end", "generation_config.json", "746", "[746, 744]", []string{"end", "746", "744", "<|endoftext|>"}, ""},
		{"a template", "chat_template.jinja", "user", "USER", nil, "template"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var group []*loaded
			for _, cfg := range []Model{{Name: "tiny-s", Threshold: 1}, edited(t, tc.file, tc.old, tc.replacement)} {
				m, err := load(cfg)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = m.close() })
				group = append(group, m)
			}
			notes, err := checkPair("d", group, nil)
			if (err != nil) != (len(tc.errors) > 0) {
				t.Fatalf("error %v", err)
			}
			for _, want := range tc.errors {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %s in:\n%s", want, err)
				}
			}
			if got := strings.Join(notes, "\n"); (got != "") != (tc.note != "") || !strings.Contains(got, tc.note) {
				t.Errorf("notes %q", got)
			}
		})
	}
}

// A directory that is not there is named.
func TestMissingDirectory(t *testing.T) {
	for _, dir := range []string{"/no/such/Qwen3-32B", t.TempDir()} {
		cfg := Defaults()
		cfg.Models[1] = Model{Name: "tiny-l", Dir: dir, Threshold: 1}
		if _, err := Load(cfg); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir) {
			t.Errorf("error %v, want one that names %s", err, dir)
		}
	}
}
