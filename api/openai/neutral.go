package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Bounds of parameters that are known but not supported with an effect.
const (
	maxStops     = 4
	maxStopBytes = 256
	maxBias      = 1024
)

// skipNeutral takes the known parameters that are not supported. A neutral
// value passes, a bad one is an error of its own, any other is refused by name.
func (o *object) skipNeutral() {
	o.neutralCounts()
	o.neutralNumbers()
	o.neutralFlags()
	for _, name := range []string{"tools", "functions", "stop_token_ids", "bad_words", "logits_processors", "allowed_token_ids"} {
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
	o.stop()
	o.logitBias()
	o.toolChoice("tool_choice")
	o.toolChoice("function_call")
	o.responseFormat()
	o.modalities()
}

// neutralFlags takes boolean parameters that have an effect with one value only.
func (o *object) neutralFlags() {
	for _, name := range []string{"ignore_eos", "echo", "use_beam_search", "include_stop_str_in_output",
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
	for _, name := range []string{"n", "best_of"} {
		if v, ok := o.integer(name, 1, 8); ok && v != 1 {
			o.fail(unsupported(name))
		}
	}
	for _, name := range []string{"min_tokens", "priority"} {
		if v, ok := o.integer(name, 0, math.MaxInt32); ok && v != 0 {
			o.fail(unsupported(name))
		}
	}
}

func (o *object) neutralNumbers() {
	for _, p := range []struct {
		name            string
		lo, hi, neutral float64
	}{
		{"presence_penalty", -2, 2, 0},
		{"frequency_penalty", -2, 2, 0},
		{"repetition_penalty", 0, 10, 1},
		{"length_penalty", 0, 10, 1},
		{"min_p", 0, 1, 0},
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

// stop takes stop strings. An empty one would match everywhere, so it is bad
// rather than unsupported.
func (o *object) stop() {
	raw, ok := o.take("stop")
	if !ok {
		return
	}
	one := func(e []byte) bool {
		switch s, isText := text(e); {
		case !isText:
			o.fail(wrongType("stop", "a string or an array of strings"))
		case s == "":
			o.fail(invalid("stop", "'stop' holds an empty string"))
		case len(s) > maxStopBytes:
			o.fail(invalid("stop", "'stop' holds a string of more than %d bytes", maxStopBytes))
		default:
			return true
		}
		return false
	}
	switch kind(raw) {
	case '"':
		if one(raw) {
			o.fail(unsupported("stop"))
		}
	case '[':
		n := 0
		elements(raw, func(i int, e []byte) bool {
			n = i + 1
			if n > maxStops {
				o.fail(invalid("stop", "'stop' holds more than %d strings", maxStops))
				return false
			}
			return one(e)
		})
		if n > 0 {
			o.fail(unsupported("stop"))
		}
	default:
		o.fail(wrongType("stop", "a string or an array of strings"))
	}
}

func (o *object) logitBias() {
	raw, ok := o.take("logit_bias")
	if !ok {
		return
	}
	var bias map[string]json.RawMessage
	if kind(raw) != '{' || json.Unmarshal(raw, &bias) != nil {
		o.fail(wrongType("logit_bias", "an object of token ids and numbers"))
		return
	}
	if len(bias) > maxBias {
		o.fail(invalid("logit_bias", "'logit_bias' holds more than %d ids", maxBias))
		return
	}
	for id, value := range bias {
		v, err := strconv.ParseFloat(string(value), 64)
		_, idErr := strconv.ParseUint(id, 10, 31)
		switch {
		case idErr != nil:
			o.fail(invalid("logit_bias", "%q in 'logit_bias' is not a token id", Excerpt(id)))
		case kind(value) != '0' || err != nil || v < -100 || v > 100:
			o.fail(invalid("logit_bias", "'logit_bias' of id %s must be between -100 and 100", id))
		}
	}
	if len(bias) > 0 {
		o.fail(unsupported("logit_bias"))
	}
}

// toolChoice takes a choice among tools. Without tools, none and auto mean nothing.
func (o *object) toolChoice(name string) {
	raw, ok := o.take(name)
	if !ok {
		return
	}
	switch kind(raw) {
	case '"':
		if s, _ := text(raw); s != "none" && s != "auto" {
			o.fail(unsupported(name))
		}
	case '{':
		o.fail(unsupported(name))
	default:
		o.fail(wrongType(name, "a string or an object"))
	}
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
