package openai

// Limits on what a client may send, checked before anything is allocated.
const (
	// MaxBody bounds a request's body, in bytes.
	MaxBody = 4 << 20
	// MaxDepth bounds the nesting of arrays and objects in it.
	MaxDepth = 64
	// MaxMessages bounds the turns of a chat.
	MaxMessages = 4096
	// MaxTools bounds the tools of a chat, MaxToolName the name of one in bytes.
	MaxTools    = 128
	MaxToolName = 128
	// MaxPrompts bounds the prompts of one completions request.
	MaxPrompts = 128
	// MaxTopLogprobs bounds the alternatives reported with each token.
	MaxTopLogprobs = 20
	// maxEcho bounds how much of a client's text an error repeats, in bytes.
	maxEcho = 64
	// maxIgnored bounds the ignored fields that a response lists.
	maxIgnored = 16
)
