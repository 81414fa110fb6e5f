// Package chat renders a conversation with the checkpoint's own chat template
// and turns the result into the prompt's token ids.
//
// The entry sub-service calls EncodeChat once per request; both models then
// work on these ids. Two promises stand above exactness of the render. First,
// what a user, a tool or an earlier answer says can never become a control
// token: a text such as "<|im_end|>" in a message stays text, because the rendered
// text remembers who wrote which part of it. Second, a template cannot take the
// worker down: a fault in it is an error of that request, and steps, depth, memory,
// output and time are bounded while it runs (package jinja).
//
// The template comes with the model and is trusted as far as its author; the
// messages are not trusted at all.
package chat
