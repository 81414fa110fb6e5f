package openai

import (
	"encoding/json"
	"testing"
)

func TestParseTokenize(t *testing.T) {
	r, err := ParseTokenize([]byte(`{"model":"m","prompt":"","add_special_tokens":false,"return_token_strs":true}`))
	if err != nil || r.Model != "m" || r.Text != "" || !r.Bare || !r.Strings || r.Messages != nil {
		t.Errorf("text: %+v %v", r, err)
	}
	r, err = ParseTokenize([]byte(`{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":true,"add_special_tokens":true,"chat_template_kwargs":{"a":1}}`))
	if err != nil || r.Model != "" || len(r.Messages) != 1 || r.Bare || r.Strings || string(r.TemplateArgs) != `{"a":1}` {
		t.Errorf("chat: %+v %v", r, err)
	}
	for _, tc := range []struct{ name, body, param, code string }{
		{"B41 null", `{"model":"m","prompt":null}`, "prompt", CodeMissing},
		{"nothing", `{}`, "prompt", CodeMissing},
		{"ids", `{"prompt":[1]}`, "prompt", CodeInvalidType},
		{"both", `{"prompt":"a","messages":[{"role":"user","content":"x"}]}`, "messages", CodeInvalidValue},
		{"no messages", `{"messages":[]}`, "messages", CodeInvalidValue},
		{"without the answer's beginning", `{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false}`, "add_generation_prompt", CodeUnsupported},
		{"strings", `{"prompt":"a","return_token_strs":1}`, "return_token_strs", CodeInvalidType},
		{"no JSON", `prompt`, "", CodeInvalidJSON},
	} {
		if _, err := ParseTokenize([]byte(tc.body)); err == nil || err.Param != tc.param || err.Code != tc.code {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestParseDetokenize(t *testing.T) {
	r, err := ParseDetokenize([]byte(`{"model":"m","tokens":[1,2.0]}`))
	if err != nil || r.Model != "m" || len(r.IDs) != 2 || r.Check(Limits{MaxContext: 2, Vocab: 3}) != nil {
		t.Errorf("%+v %v", r, err)
	}
	if empty, err := ParseDetokenize([]byte(`{"tokens":[ ]}`)); err != nil || len(empty.IDs) != 0 {
		t.Errorf("no ids: %v", err)
	}
	if err := r.Check(Limits{MaxContext: 2, Vocab: 2}); err == nil || err.Param != "tokens" || err.Code != CodeInvalidValue {
		t.Errorf("an id of no model: %v", err)
	}
	if err := r.Check(Limits{MaxContext: 1, Vocab: 3}); err == nil || err.Code != codeContextLength {
		t.Errorf("too many: %v", err)
	}
	for _, tc := range []struct{ name, body, code string }{
		{"B41 negative", `{"tokens":[-1]}`, CodeInvalidValue},
		{"text", `{"tokens":"a"}`, CodeInvalidType},
		{"fraction", `{"tokens":[1.5]}`, CodeInvalidValue},
		{"absent", `{"model":"m"}`, CodeMissing},
	} {
		if _, err := ParseDetokenize([]byte(tc.body)); err == nil || err.Param != "tokens" || err.Code != tc.code {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestAppendTokens(t *testing.T) {
	for _, tc := range []struct {
		got  []byte
		want string
	}{
		{AppendTokens(nil, []int32{5, 6}, nil, 9), `{"count":2,"max_model_len":9,"tokens":[5,6],"token_strs":null}`},
		{AppendTokens(nil, nil, []string{}, 9), `{"count":0,"max_model_len":9,"tokens":[],"token_strs":[]}`},
		{AppendTokens(nil, []int32{5}, []string{"\"\x00"}, 9), `{"count":1,"max_model_len":9,"tokens":[5],"token_strs":["\"\u0000"]}`},
		{AppendText(nil, "a\nb"), `{"prompt":"a\nb"}`},
		{AppendVersion(nil, "1"), `{"version":"1"}`},
	} {
		if string(tc.got) != tc.want || !json.Valid(tc.got) {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}
