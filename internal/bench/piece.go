package bench

// piece is what the benchmark needs of an answer, or of one chunk of it. Slices
// point into the text that was read.
type piece struct {
	// choices is how many choices the piece has.
	choices int
	// text says that a choice has text, thoughts or a tool call.
	text bool
	// writer says that our extension names the writer of a token.
	writer bool
	// finish is the last finish reason, empty if there is none.
	finish []byte

	counted            bool // there is a usage object
	prompt, completion int64

	// extension is our extension object if it has the counts of a whole answer.
	extension []byte
	// failure is the error object, nil if there is none.
	failure []byte
}

// token says that the piece carries a token.
func (p *piece) token() bool { return p.choices > 0 && (p.text || p.writer) }

// readPiece finds the fields of a piece. Of a key that occurs twice the last
// value counts, as everywhere.
func readPiece(text []byte) (piece, error) {
	c := cursor{b: text}
	var p piece
	if c.peek() != '{' {
		return p, errJSON
	}
	c.object(func(key []byte) {
		switch string(key) {
		case "choices":
			p.choices, p.text, p.finish = 0, false, nil
			if !c.null() {
				c.array(func() { p.choice(&c) })
			}
		case "usage":
			p.usage(&c)
		case "trctl":
			p.routing(&c)
		case "error":
			p.failure = nil
			if !c.null() {
				p.failure = c.raw()
			}
		default:
			c.skip()
		}
	})
	if !c.end() {
		return piece{}, errJSON
	}
	return p, nil
}

func (p *piece) choice(c *cursor) {
	if c.peek() != '{' {
		c.fail()
		return
	}
	p.choices++
	c.object(func(key []byte) {
		switch string(key) {
		case "text":
			p.note(c)
		case "delta", "message":
			p.delta(c)
		case "finish_reason":
			if !c.null() {
				if c.peek() != '"' {
					c.fail()
					return
				}
				p.finish = c.str()
			}
		case "trctl":
			// Several choices have an extension each.
			p.routing(c)
		default:
			c.skip()
		}
	})
}

func (p *piece) note(c *cursor) {
	if c.filled() {
		p.text = true
	}
}

func (p *piece) delta(c *cursor) {
	if c.null() {
		return
	}
	if c.peek() != '{' {
		c.fail()
		return
	}
	c.object(func(key []byte) {
		switch string(key) {
		case "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call":
			p.note(c)
		default:
			c.skip()
		}
	})
}

func (p *piece) usage(c *cursor) {
	p.counted, p.prompt, p.completion = false, 0, 0
	if c.null() {
		return
	}
	if c.peek() != '{' {
		c.fail()
		return
	}
	c.object(func(key []byte) {
		switch string(key) {
		case "prompt_tokens":
			p.prompt = c.count()
		case "completion_tokens":
			p.counted = true
			p.completion = c.count()
		default:
			c.skip()
		}
	})
}

// routing looks at our extension object. A foreign field of the same name is
// ignored, whatever it holds.
func (p *piece) routing(c *cursor) {
	p.writer, p.extension = false, nil
	if c.peek() != '{' {
		c.skip()
		return
	}
	c.space()
	start, whole := c.i, false
	c.object(func(key []byte) {
		switch string(key) {
		case "model":
			p.writer = c.filled()
		case "tokens":
			whole = c.peek() == '{'
			c.skip()
		default:
			c.skip()
		}
	})
	if whole && !c.bad {
		p.extension = c.b[start:c.i]
	}
}
