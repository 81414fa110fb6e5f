package sampler

// Counts knows how often each id stands in a sequence. It follows the sequence
// up and down: what is popped leaves no trace, so the counts depend on the ids
// alone. Memory is 9 bytes for each id of the vocabulary and 4 for each position.
//
// It must not be used by two goroutines at once.
type Counts struct {
	promptLen int
	ids       []int32 // of positions [0, len)
	total     []int32 // [V] in prompt and answer
	answer    []int32 // [V] in the answer
	// listed are the ids that were pushed since Reset, each once, in the order of
	// first push. Some may be back at zero.
	listed []int32
	isIn   []bool // [V] whether an id is listed
}

// NewCounts returns the counts of an empty sequence over a vocabulary.
func NewCounts(vocab, promptLen int) *Counts {
	return &Counts{promptLen: promptLen, total: make([]int32, vocab), answer: make([]int32, vocab), isIn: make([]bool, vocab)}
}

// Reset makes the sequence empty and sets its prompt length.
func (c *Counts) Reset(promptLen int) {
	for _, id := range c.listed {
		c.total[id], c.answer[id], c.isIn[id] = 0, 0, false
	}
	c.promptLen, c.ids, c.listed = promptLen, c.ids[:0], c.listed[:0]
}

// Len returns the number of ids in the sequence.
func (c *Counts) Len() int { return len(c.ids) }

// Push appends ids, which must be in the vocabulary.
func (c *Counts) Push(ids ...int32) {
	for _, id := range ids {
		if !c.isIn[id] {
			c.isIn[id] = true
			c.listed = append(c.listed, id)
		}
		c.total[id]++
		if len(c.ids) >= c.promptLen {
			c.answer[id]++
		}
		c.ids = append(c.ids, id)
	}
}

// Truncate drops the ids from position length on, if there are any.
func (c *Counts) Truncate(length int) {
	for n := len(c.ids) - 1; n >= length; n-- {
		id := c.ids[n]
		c.total[id]--
		if n >= c.promptLen {
			c.answer[id]--
		}
		c.ids = c.ids[:n]
	}
}
