package models

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io/fs"
	"testing"
)

func TestFSHoldsWholeModels(t *testing.T) {
	want := []string{"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
		"tokenizer_config.json", "chat_template.jinja"}
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			fsys, ok := FS(name)
			if !ok {
				t.Fatal("not embedded")
			}
			for _, f := range want {
				st, err := fs.Stat(fsys, f)
				if err != nil || st.Size() == 0 {
					t.Errorf("%s: %v", f, err)
				}
			}
		})
	}
}

func TestFSRefusesOtherNames(t *testing.T) {
	for _, name := range []string{"", ".", "tiny-x", "../tiny-s", "eval"} {
		if _, ok := FS(name); ok {
			t.Errorf("FS(%q) = ok", name)
		}
	}
}

func TestProblems(t *testing.T) {
	sc := bufio.NewScanner(bytes.NewReader(Problems()))
	n := 0
	for sc.Scan() {
		var p struct {
			Question string
			Answer   json.Number
		}
		if err := json.Unmarshal(sc.Bytes(), &p); err != nil || p.Question == "" || p.Answer == "" {
			t.Fatalf("line %d: %v", n+1, err)
		}
		n++
	}
	if n < 100 {
		t.Fatalf("%d problems", n)
	}
}
