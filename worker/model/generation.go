package model

// Generation is generation_config.json: what the authors suggest. A nil pointer
// means that the file is silent.
type Generation struct {
	// EOS are the ids that end an answer (from config.json if this file has none).
	EOS         []int32
	Temperature *float32
	TopP        *float32
	TopK        *int32
}

// ParseGeneration reads generation_config.json for a model with the given config.
func ParseGeneration(data []byte, c *Config) (Generation, error) {
	f, err := parseFields(generationFile, data)
	if err != nil {
		return Generation{}, err
	}
	g := Generation{EOS: f.ids("eos_token_id", c.VocabSize)}
	if g.EOS == nil {
		g.EOS = c.EOS
	}
	number := func(name, expected string, ok func(float32) bool) *float32 {
		if !f.has(name) {
			return nil
		}
		var x float32
		if f.get(name, expected, &x) && !ok(x) {
			f.fail(ErrCorrupt, name, expected)
		}
		return &x
	}
	g.Temperature = number("temperature", "a number from 0 to 100", func(x float32) bool { return x >= 0 && x <= 100 })
	g.TopP = number("top_p", "a number above 0, at most 1", func(x float32) bool { return x > 0 && x <= 1 })
	if f.has("top_k") {
		var k int32
		const expected = "an integer from 0 to 2147483647"
		if f.get("top_k", expected, &k) && k < 0 {
			f.fail(ErrCorrupt, "top_k", expected)
		}
		g.TopK = &k
	}
	if f.err != nil {
		return Generation{}, f.err
	}
	return g, nil
}
