package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Conversation is what a template renders.
type Conversation struct {
	Messages []Message
	// Tools is a JSON array of tool definitions, or empty.
	Tools json.RawMessage
	// Args is a JSON object of further template variables, or empty.
	Args json.RawMessage
	// AddGenerationPrompt ends the prompt with the opening of an answer.
	AddGenerationPrompt bool
	// Now gives the date to templates that ask for it; nil is the clock.
	Now func() time.Time
}

// Message is one turn.
type Message struct {
	Role    string
	Content string
	// ContentNull says that the client sent null; Content is then empty.
	ContentNull bool
	// ToolCalls is the JSON array of an assistant's calls, or empty.
	ToolCalls  json.RawMessage
	Name       string
	ToolCallID string
}

// Limits of what a request may ask for.
const (
	maxMessages  = 1 << 16
	maxRoleBytes = 64
	// maxDepth bounds nested JSON, as templates may walk it recursively.
	maxDepth = 64
	// outputFactor and outputSlack bound the rendered text against the input:
	// a longer one means a template that repeats what it was given.
	outputFactor = 4
	outputSlack  = 64 << 10
	// madeFactor and madeSlack bound all the texts on the way to it.
	madeFactor = 64
	madeSlack  = 8 << 20
	// maxSteps is a fraction of a second; the longest of the known templates takes some
	// hundred steps a message.
	maxSteps        = 1 << 20
	stepsPerMessage = 1 << 9
	maxCalls        = 100
	maxRenderTime   = 2 * time.Second
)

var (
	// ErrConversation says that a conversation is malformed, so the caller's fault.
	ErrConversation = errors.New("conversation cannot be rendered")
	// ErrNoTools says that a conversation has tools and the template never looks at them.
	ErrNoTools = errors.New("the model's chat template knows no tools")
)

// Fields of a request, for messages to the caller.
const (
	FieldMessages = "messages"
	FieldTools    = "tools"
	FieldArgs     = "chat_template_kwargs"
)

// fieldError is a fault in one field. It is an ErrConversation.
type fieldError struct{ field, text string }

func (e *fieldError) Error() string { return ErrConversation.Error() + ": " + e.text }
func (e *fieldError) Unwrap() error { return ErrConversation }

// FieldOf is the field of a request that an error of Render or EncodeChat is about.
func FieldOf(err error) string {
	var in *fieldError
	switch {
	case errors.Is(err, ErrNoTools):
		return FieldTools
	case errors.As(err, &in):
		return in.field
	}
	return FieldMessages
}

func malformed(field, format string, args ...any) error {
	return &fieldError{field, fmt.Sprintf(format, args...)}
}

// TemplateError is a refusal by the template itself (raise_exception). Message
// is the template's own text, at most 1 KiB of it, and meant for the caller.
type TemplateError struct{ Message string }

const maxRaised = 1 << 10

// raised makes a TemplateError of a text, which may repeat what the caller sent.
func raised(text string) *TemplateError {
	if len(text) > maxRaised {
		text = strings.ToValidUTF8(text[:maxRaised], "") + "..."
	}
	return &TemplateError{Message: text}
}

func (e *TemplateError) Error() string { return "chat template: " + e.Message }

// size is the length in bytes of all that is rendered.
func (c *Conversation) size() int {
	n := len(c.Tools) + len(c.Args)
	for i := range c.Messages {
		m := &c.Messages[i]
		n += len(m.Role) + len(m.Content) + len(m.ToolCalls) + len(m.Name) + len(m.ToolCallID)
	}
	return n
}

// calls reports whether a message has tool calls.
func (c *Conversation) calls() bool {
	return slices.ContainsFunc(c.Messages, func(m Message) bool { return len(m.ToolCalls) > 0 })
}

// check refuses odd roles: templates write a role between the halves of a
// control token, so it must not bring any text of its own.
func (c *Conversation) check() error {
	if len(c.Messages) > maxMessages {
		return malformed(FieldMessages, "%d messages", len(c.Messages))
	}
	for i := range c.Messages {
		role := c.Messages[i].Role
		if role == "" || len(role) > maxRoleBytes {
			return malformed(FieldMessages, "role of message %d has %d bytes", i, len(role))
		}
		for _, r := range role {
			if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' {
				return malformed(FieldMessages, "role of message %d has the character %q", i, r)
			}
		}
	}
	return nil
}
