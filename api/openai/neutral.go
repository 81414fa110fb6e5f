package openai

import (
	"fmt"
	"math"
)

// skipNeutral takes the known parameters that are not supported. A neutral
// value passes, a bad one is an error of its own, any other is refused by name.
func (o *object) skipNeutral() {
	o.neutralCounts()
	o.neutralNumbers()
	o.neutralFlags()
	for _, name := range []string{"functions", "bad_words", "logits_processors", "allowed_token_ids"} {
		o.emptyList(name)
	}
	for _, name := range []string{"suffix", "chat_template", "guided_regex", "guided_grammar", "regex", "ebnf", "reasoning_effort"} {
		if v, ok := o.str(name); ok && v != "" {
			o.fail(unsupported(name))
		}
	}
	for _, name := range []string{"guided_json", "guided_choice", "structured_outputs", "json_schema", "audio", "prediction",
		"web_search_options", "prompt_logprobs", "truncate_prompt_tokens", "thinking_token_budget", "lora_path"} {
		if _, ok := o.take(name); ok {
			o.fail(unsupported(name))
		}
	}
	o.toolChoice("function_call")
	o.responseFormat()
	o.modalities()
}

// neutralFlags takes boolean parameters that have an effect with one value only.
func (o *object) neutralFlags() {
	for _, name := range []string{"use_beam_search", "include_stop_str_in_output",
		"no_stop_trim", "continue_final_message", "return_token_ids"} {
		if v, ok := o.bool(name); ok && v {
			o.fail(unsupported(name))
		}
	}
	for _, name := range []string{"skip_special_tokens", "spaces_between_special_tokens", "add_generation_prompt"} {
		if v, ok := o.bool(name); ok && !v {
			o.fail(unsupported(name))
		}
	}
}

func (o *object) neutralCounts() {
	if v, ok := o.integer("priority", 0, math.MaxInt32); ok && v != 0 {
		o.fail(unsupported("priority"))
	}
}

func (o *object) neutralNumbers() {
	for _, p := range []struct {
		name            string
		lo, hi, neutral float64
	}{
		{"length_penalty", 0, 10, 1},
		{"typical_p", 0, 1, 1},
		{"top_a", 0, 1, 0},
	} {
		if v, ok := o.number(p.name, p.lo, p.hi); ok && v != p.neutral {
			o.fail(unsupported(p.name))
		}
	}
}

func (o *object) emptyList(name string) {
	raw, ok := o.take(name)
	if !ok {
		return
	}
	if kind(raw) != '[' {
		o.fail(wrongType(name, "an array"))
		return
	}
	elements(raw, func(int, []byte) bool {
		o.fail(unsupported(name))
		return false
	})
}

func (o *object) responseFormat() {
	raw, ok := o.take("response_format")
	if !ok {
		return
	}
	f := newObject("response_format.", raw)
	if f == nil {
		o.fail(wrongType("response_format", "an object"))
		return
	}
	typ, ok := f.str("type")
	switch {
	case f.err != nil:
		o.fail(f.err)
	case !ok:
		o.fail(missing("response_format.type"))
	case typ == "text":
	case typ == "json_object" || typ == "json_schema" || typ == "grammar" || typ == "structural_tag":
		o.fail(unsupported("response_format"))
	default:
		o.fail(invalid("response_format", "'response_format.type' %q is unknown", Excerpt(typ)))
	}
}

func (o *object) modalities() {
	raw, ok := o.take("modalities")
	if !ok {
		return
	}
	if kind(raw) != '[' {
		o.fail(wrongType("modalities", "an array of strings"))
		return
	}
	elements(raw, func(i int, e []byte) bool {
		switch s, isText := text(e); {
		case !isText:
			o.fail(wrongType(fmt.Sprintf("modalities[%d]", i), "a string"))
		case s != "text":
			o.fail(unsupported("modalities"))
		}
		return o.err == nil
	})
}
