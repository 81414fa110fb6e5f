package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"
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

// Template is a compiled chat template. It is safe for concurrent use.
type Template struct {
	engine engine
	source string
	// names are the template variables of the tokenizer's config, such as bos_token.
	names map[string]string
	// knowsNull says that the template tells null content from an empty one.
	knowsNull bool
}

// engine runs a compiled template. All engine-specific code is behind it.
type engine interface {
	render(vars *object, b budget) (string, error)
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

// Parse compiles a template; names are further variables such as bos_token.
func Parse(source string, names map[string]string) (*Template, error) {
	if len(source) > maxTemplateBytes {
		return nil, fmt.Errorf("chat template has %d bytes, more than %d", len(source), maxTemplateBytes)
	}
	if strings.Contains(source, string(guardMark)) || strings.Contains(source, string(escape)) {
		return nil, fmt.Errorf("chat template holds a noncharacter: %w", ErrUnguardable)
	}
	e, err := newJinja(source)
	if err != nil {
		return nil, fmt.Errorf("compile chat template: %w", err)
	}
	null := regexp.MustCompile(`\bcontent['"]?\]?\s+is\s+(not\s+)?none`)
	return &Template{engine: e, source: source, names: names, knowsNull: null.MatchString(strings.ToLower(source))}, nil
}

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
	text, err := t.render(&c, escapeMarks, escapeMarks)
	return clean(text), err
}

// render marks the texts and runs the template; the result still has its marks.
func (t *Template) render(c *Conversation, untrusted, assistant marking) (string, error) {
	if err := c.check(); err != nil {
		return "", err
	}
	vars, err := t.variables(c, untrusted, assistant)
	if err != nil {
		return "", err
	}
	b := newBudget(c.size())
	text, err := t.engine.render(vars, b)
	if err != nil {
		return "", err
	}
	if len(text) > b.outputBytes {
		return "", fmt.Errorf("%w: it wrote %d bytes", ErrBudget, len(text))
	}
	return text, nil
}

func (t *Template) variables(c *Conversation, untrusted, assistant marking) (*object, error) {
	vars := newObject()
	for k, v := range t.names {
		vars.set(k, v)
	}
	vars.set("tools", nil)
	vars.set("documents", nil)
	if len(c.Args) > 0 {
		v, err := decodeJSON(c.Args, "template arguments")
		if err != nil {
			return nil, err
		}
		args, ok := v.(*object)
		if !ok && v != nil {
			return nil, malformed("template arguments are not an object")
		}
		for i := 0; ok && i < len(args.keys); i++ {
			vars.set(args.keys[i], marked(args.values[args.keys[i]], untrusted, false))
		}
	}
	if len(c.Tools) > 0 {
		v, err := decodeJSON(c.Tools, "tools")
		if err != nil {
			return nil, err
		}
		if _, ok := v.([]any); !ok && v != nil {
			return nil, malformed("tools is not an array")
		}
		vars.set("tools", marked(v, untrusted, true))
	}
	messages := make([]any, len(c.Messages))
	for i := range c.Messages {
		m, err := t.message(&c.Messages[i], i, untrusted, assistant)
		if err != nil {
			return nil, err
		}
		messages[i] = m
	}
	vars.set("messages", messages)
	vars.set("add_generation_prompt", c.AddGenerationPrompt)
	return vars, nil
}

func (t *Template) message(m *Message, i int, untrusted, assistant marking) (*object, error) {
	o := newObject()
	o.set("role", m.Role)
	mark := untrusted
	if m.Role == "assistant" {
		mark = assistant
	}
	o.set("content", mark(m.Content))
	if m.ContentNull && t.knowsNull {
		o.set("content", nil)
	}
	if len(m.ToolCalls) > 0 {
		calls, err := callList(m.ToolCalls, fmt.Sprintf("tool_calls of message %d", i))
		if err != nil {
			return nil, err
		}
		if calls != nil {
			o.set("tool_calls", marked(calls, untrusted, true))
		}
	}
	if m.Name != "" {
		o.set("name", untrusted(m.Name))
	}
	if m.ToolCallID != "" {
		o.set("tool_call_id", untrusted(m.ToolCallID))
	}
	return o, nil
}
