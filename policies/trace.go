package policies

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxTrace bounds the entries of a trace.
const MaxTrace = 1 << 16

// traceKey is a decision point: the answer position of the sampled token and
// the model that sampled it.
type traceKey struct {
	position int
	on       ModelID
}

// trace replays a list of decisions. It is for tests and for replaying a
// recorded run: where the list says nothing, the entry model keeps its token
// and stays, and any other model keeps its token and returns the turn.
type trace struct {
	defaults
	list map[traceKey]Decision
}

func (p *trace) Route(b *Batch, r *Result, out []Decision) {
	for i, q := range b.Reqs {
		d, listed := p.list[traceKey{len(q.Out), p.self}]
		switch {
		case listed:
			out[i] = d
		case p.self == q.Owner:
			out[i] = Decision{To: p.self, Keep: true}
		default:
			out[i] = back(q)
		}
	}
}

// parseTrace reads a decision list: entries separated by commas or newlines,
// each `POSITION[@MODEL] DESTINATION keep|drop`. POSITION counts the answer's
// tokens from 0, MODEL is the index of the model that sampled it (0, the entry
// model, if absent), DESTINATION the index of the model that goes on.
func parseTrace(text string, models int) (map[traceKey]Decision, error) {
	list := map[traceKey]Decision{}
	entries := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' })
	if len(entries) > MaxTrace {
		return nil, fmt.Errorf("trace: %d entries, at most %d are allowed", len(entries), MaxTrace)
	}
	for n, entry := range entries {
		fields := strings.Fields(entry)
		if len(fields) == 0 {
			continue
		}
		key, d, err := parseTraceEntry(fields, models)
		if err != nil {
			return nil, fmt.Errorf("trace: entry %d (%q): %w", n+1, strings.TrimSpace(entry), err)
		}
		if _, twice := list[key]; twice {
			return nil, fmt.Errorf("trace: entry %d: position %d on model %d is listed twice", n+1, key.position, key.on)
		}
		list[key] = d
	}
	return list, checkTrace(list)
}

func parseTraceEntry(fields []string, models int) (traceKey, Decision, error) {
	var key traceKey
	var d Decision
	if len(fields) != 3 {
		return key, d, fmt.Errorf("want POSITION[@MODEL] DESTINATION keep|drop")
	}
	at, on, given := strings.Cut(fields[0], "@")
	position, err := strconv.Atoi(at)
	if err != nil || position < 0 {
		return key, d, fmt.Errorf("position %q is not a number from 0", at)
	}
	key.position = position
	if given {
		if key.on, err = parseModel(on, models); err != nil {
			return key, d, err
		}
	}
	if d.To, err = parseModel(fields[1], models); err != nil {
		return key, d, err
	}
	switch fields[2] {
	case "keep":
		d.Keep = true
	case "drop":
		if d.To == key.on {
			return key, d, fmt.Errorf("a dropped token must go to another model")
		}
	default:
		return key, d, fmt.Errorf("%q is neither keep nor drop", fields[2])
	}
	return key, d, nil
}

func parseModel(s string, models int) (ModelID, error) {
	m, err := strconv.Atoi(s)
	if err != nil || m < 0 || m >= models {
		return 0, fmt.Errorf("model %q is not an index below %d", s, models)
	}
	return ModelID(m), nil
}

// checkTrace refuses a list in which a position is dropped around a circle, so
// that no token would ever be committed.
func checkTrace(list map[traceKey]Decision) error {
	for start := range list {
		key := start
		for range MaxModels + 1 {
			d, listed := list[key]
			if !listed || d.Keep {
				break
			}
			key.on = d.To
			if key == start {
				return fmt.Errorf("trace: position %d is dropped in a circle from model %d", start.position, start.on)
			}
		}
	}
	return nil
}
