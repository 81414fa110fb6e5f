package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"
	"time"

	"github.com/sourcegraph/conc/panics"

	"github.com/tokenrouter/tokenrouter/worker/tokenizer/chat/jinja"
)

// Files of a model's directory that may hold the template.
const (
	templateFile = "chat_template.jinja"
	configFile   = "tokenizer_config.json"
)

const (
	maxTemplateBytes = 1 << 20
	maxConfigBytes   = 64 << 20
)

var (
	// ErrNoTemplate says that a model's directory has no chat template.
	ErrNoTemplate = errors.New("model has no chat template")
	// ErrBudget says that a render took too long, looped too often, or wrote
	// far more than it was given.
	ErrBudget = errors.New("chat template is over its budget")
)

// Template is a parsed chat template. It is safe for concurrent use.
type Template struct {
	parsed *jinja.Template
	source string
	// names are the template variables of the tokenizer's config, such as bos_token.
	names map[string]string
	// knowsNull says that the template tells null content from an empty one.
	knowsNull bool
}

// Load reads the chat template of a model's directory: chat_template.jinja, or
// else chat_template of tokenizer_config.json.
func Load(fsys fs.FS) (*Template, error) {
	var config struct {
		Template json.RawMessage `json:"chat_template"`
	}
	names := map[string]string{}
	text, err := readBounded(fsys, configFile, maxConfigBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read %s: %w", configFile, err)
	}
	if err == nil {
		var all map[string]json.RawMessage
		if err := json.Unmarshal(text, &all); err != nil {
			return nil, fmt.Errorf("parse %s: %w", configFile, err)
		}
		config.Template = all["chat_template"]
		for k, v := range all {
			if s, ok := tokenText(v); ok && strings.HasSuffix(k, "_token") {
				names[k] = s
			}
		}
	}
	source, err := readBounded(fsys, templateFile, maxTemplateBytes)
	if errors.Is(err, fs.ErrNotExist) {
		source, err = configTemplate(config.Template)
	}
	if err != nil {
		return nil, fmt.Errorf("read chat template: %w", err)
	}
	return Parse(string(source), names)
}

// Parse reads a template; names are further variables such as bos_token.
func Parse(source string, names map[string]string) (*Template, error) {
	if len(source) > maxTemplateBytes {
		return nil, fmt.Errorf("chat template has %d bytes, more than %d", len(source), maxTemplateBytes)
	}
	parsed, err := jinja.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	null := regexp.MustCompile(`\bcontent['"]?\]?\s+is\s+(not\s+)?none`)
	return &Template{parsed: parsed, source: source, names: names, knowsNull: null.MatchString(strings.ToLower(source))}, nil
}

// KnowsTools reports whether the template looks at the tools of a conversation.
func (t *Template) KnowsTools() bool { return t.parsed.Reads("tools") }

// Source is the template's text, for pair checks.
func (t *Template) Source() string { return t.source }

func readBounded(fsys fs.FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return text, err
}

// tokenText reads a token of the config: a text, or an object with a content.
func tokenText(raw json.RawMessage) (string, bool) {
	var s string
	if json.Unmarshal(raw, &s) == nil && string(raw) != "null" {
		return s, true
	}
	var token struct {
		Content *string `json:"content"`
	}
	if json.Unmarshal(raw, &token) == nil && token.Content != nil {
		return *token.Content, true
	}
	return "", false
}

// configTemplate reads chat_template: a text, or a list of named ones of which
// "default" counts.
func configTemplate(raw json.RawMessage) ([]byte, error) {
	var s string
	if len(raw) == 0 || string(raw) == "null" {
		return nil, ErrNoTemplate
	}
	if json.Unmarshal(raw, &s) == nil {
		return []byte(s), nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &named); err != nil {
		return nil, fmt.Errorf("chat_template of %s: %w", configFile, err)
	}
	for _, n := range named {
		if n.Name == "default" {
			return []byte(n.Template), nil
		}
	}
	return nil, ErrNoTemplate
}

// Render returns the prompt's text, as the reference implementation would. The
// text must not be encoded with added tokens parsed; use EncodeChat.
func (t *Template) Render(c Conversation) (string, error) {
	text, err := t.render(&c)
	return text.String(), err
}

// render runs the template. Where it cannot work with tool calls whose arguments
// are objects, it gets them as the texts that they came as.
func (t *Template) render(c *Conversation) (jinja.Text, error) {
	if err := c.check(); err != nil {
		return jinja.Text{}, err
	}
	text, err := t.once(c, false)
	if errors.Is(err, jinja.ErrRender) && c.calls() {
		if again, second := t.once(c, true); second == nil {
			return again, nil
		}
	}
	var refused *jinja.Raised
	switch {
	case errors.As(err, &refused):
		return jinja.Text{}, raised(refused.Message)
	case errors.Is(err, jinja.ErrBudget):
		return jinja.Text{}, fmt.Errorf("%w: %w", ErrBudget, err)
	case err != nil:
		return jinja.Text{}, fmt.Errorf("chat template: %w", err)
	}
	return text, nil
}

func (t *Template) once(c *Conversation, rawCalls bool) (jinja.Text, error) {
	vars, err := t.variables(c, rawCalls)
	if err != nil {
		return jinja.Text{}, err
	}
	now := c.Now
	if now == nil {
		now = time.Now
	}
	size := c.size()
	limits := jinja.Limits{
		Steps:    maxSteps + stepsPerMessage*len(c.Messages),
		Depth:    maxCalls,
		Output:   outputFactor*size + outputSlack,
		Made:     madeFactor*size + madeSlack,
		Deadline: time.Now().Add(maxRenderTime),
	}
	var text jinja.Text
	// A mistake in the interpreter must not end the worker.
	if r := panics.Try(func() { text, err = t.parsed.Render(jinja.Env{Vars: vars, Now: now}, limits) }); r != nil {
		return jinja.Text{}, fmt.Errorf("template engine failed: %w", r.AsError())
	}
	return text, err
}

func own(s string) jinja.Text { return jinja.Mark(s, jinja.Own) }

func (t *Template) variables(c *Conversation, rawCalls bool) (*jinja.Dict, error) {
	vars := jinja.NewDict()
	for k, v := range t.names {
		vars.Set(own(k), own(v))
	}
	vars.Set(own("tools"), nil)
	vars.Set(own("documents"), nil)
	if len(c.Args) > 0 {
		v, err := decodeJSON(c.Args, FieldArgs, "template arguments")
		if err != nil {
			return nil, err
		}
		args, ok := v.(*jinja.Dict)
		if !ok && v != nil {
			return nil, malformed(FieldArgs, "template arguments are not an object")
		}
		if ok {
			for name, v := range args.All() {
				vars.Set(name, v)
			}
		}
	}
	if len(c.Tools) > 0 {
		v, err := decodeJSON(c.Tools, FieldTools, "tools")
		if err != nil {
			return nil, err
		}
		if _, ok := v.(*jinja.List); !ok && v != nil {
			return nil, malformed(FieldTools, "tools is not an array")
		}
		vars.Set(own("tools"), v)
	}
	messages := &jinja.List{Items: make([]jinja.Value, len(c.Messages))}
	for i := range c.Messages {
		m, err := t.message(&c.Messages[i], i, rawCalls)
		if err != nil {
			return nil, err
		}
		messages.Items[i] = m
	}
	vars.Set(own("messages"), messages)
	vars.Set(own("add_generation_prompt"), c.AddGenerationPrompt)
	return vars, nil
}

func (t *Template) message(m *Message, i int, rawCalls bool) (*jinja.Dict, error) {
	o := jinja.NewDict()
	o.Set(own("role"), own(m.Role))
	content := foreign(m.Content)
	if m.Role == "assistant" {
		content = jinja.Mark(content.String(), jinja.Answer)
	}
	o.Set(own("content"), content)
	if m.ContentNull && t.knowsNull {
		o.Set(own("content"), nil)
	}
	if len(m.ToolCalls) > 0 {
		calls, err := callList(m.ToolCalls, fmt.Sprintf("tool_calls of message %d", i), rawCalls)
		if err != nil {
			return nil, err
		}
		if calls != nil {
			o.Set(own("tool_calls"), calls)
		}
	}
	if m.Name != "" {
		o.Set(own("name"), foreign(m.Name))
	}
	if m.ToolCallID != "" {
		o.Set(own("tool_call_id"), foreign(m.ToolCallID))
	}
	return o, nil
}
