package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/tokenrouter/tokenrouter/internal/jsonscan"
	"github.com/tokenrouter/tokenrouter/internal/near"
)

// ErrBad says that a router's files break their format or do not belong together.
var ErrBad = errors.New("bad router")

// ErrUnsupported says that a router is of a form that is not computed here.
var ErrUnsupported = errors.New("unsupported router")

// Kind is a family of nets.
type Kind string

// The kinds. What each takes from a row beside the hidden vector is in parentheses.
const (
	R2R   Kind = "r2r"    // (candidate, largest logits)
	CITER Kind = "citer"  // (nothing)
	CoLLM Kind = "co-llm" // (nothing)
)

// Kinds lists them.
func Kinds() []Kind { return []Kind{R2R, CITER, CoLLM} }

// Sidecar is NAME.json.
type Sidecar struct {
	// Format is 1.
	Format int  `json:"format"`
	Kind   Kind `json:"kind"`
	// Model is the served name of the entry model that the net was trained on.
	Model string `json:"model"`
	// HiddenSize is that model's, LogitsSize the number of largest logits that r2r takes.
	HiddenSize int `json:"hidden_size"`
	LogitsSize int `json:"logits_size"`
	// NormalizeInput says that r2r takes normalised vectors and a softmax of the logits.
	NormalizeInput bool `json:"normalize_input"`
	// Threshold is what the authors found best; nil if they say none.
	Threshold *float64 `json:"threshold,omitempty"`
	// Source says in free text where the net comes from.
	Source string `json:"source"`
}

const (
	maxSidecar = 64 << 10 // bytes of NAME.json
	maxText    = 4 << 10  // bytes of a string in it
	// MaxLogits bounds LogitsSize: executors offer so many.
	MaxLogits = 128
	maxHidden = 1 << 15
)

// required and optional are the keys of a sidecar.
func required() []string { return []string{"format", "kind", "model", "hidden_size"} }
func optional() []string {
	return []string{"logits_size", "normalize_input", "threshold", "source"}
}

// ParseSidecar reads and checks NAME.json. Unknown and duplicate keys are errors.
func ParseSidecar(text []byte) (*Sidecar, error) {
	if len(text) > maxSidecar {
		return nil, fmt.Errorf("%w: expected at most %d bytes, found %d", ErrBad, maxSidecar, len(text))
	}
	scan, err := jsonscan.New(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBad, err)
	}
	s, seen := &Sidecar{}, map[string]bool{}
	err = scan.Object(maxText, func(key []byte) error {
		name := string(key)
		if !slices.Contains(required(), name) && !slices.Contains(optional(), name) {
			return fmt.Errorf("unknown key %q%s", name, suggestion(name))
		}
		if seen[name] {
			return fmt.Errorf("duplicate key %q", name)
		}
		seen[name] = true
		if err := s.field(name, scan); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	for _, name := range required() {
		if err == nil && !seen[name] {
			err = fmt.Errorf("%s is missing", name)
		}
	}
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBad, err)
	}
	return s, nil
}

// field reads the value of one key.
func (s *Sidecar) field(name string, scan *jsonscan.Scanner) (err error) {
	switch name {
	case "format":
		s.Format, err = size(scan)
	case "kind":
		var text string
		text, err = scan.String(maxText)
		s.Kind = Kind(text)
	case "model":
		s.Model, err = scan.String(maxText)
	case "hidden_size":
		s.HiddenSize, err = size(scan)
	case "logits_size":
		s.LogitsSize, err = size(scan)
	case "normalize_input":
		switch word := string(scan.Raw()); word {
		case "true":
			s.NormalizeInput = true
		case "false":
		default:
			return fmt.Errorf("expected true or false, found %.40s", word)
		}
	case "threshold":
		word := string(scan.Raw())
		if word == "null" {
			return nil
		}
		v, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return fmt.Errorf("expected a number, found %.40s", word)
		}
		s.Threshold = &v
	case "source":
		s.Source, err = scan.String(maxText)
	}
	return err
}

// size reads a small number.
func size(scan *jsonscan.Scanner) (int, error) {
	v, err := scan.Uint()
	if err == nil && v > math.MaxInt32 {
		err = fmt.Errorf("%d is too large", v)
	}
	return int(v), err
}

// check finds values out of range.
func (s *Sidecar) check() error {
	switch {
	case s.Format != 1:
		return fmt.Errorf("format: expected 1, found %d", s.Format)
	case s.Kind != R2R && s.Kind != CITER && s.Kind != CoLLM:
		return fmt.Errorf("kind: expected r2r, citer or co-llm, found %q", s.Kind)
	case s.Model == "" || len(s.Model) > maxText || len(s.Source) > maxText:
		return fmt.Errorf("model: expected a name of 1 to %d bytes", maxText)
	case s.HiddenSize < 1 || s.HiddenSize > maxHidden:
		return fmt.Errorf("hidden_size: expected 1 to %d, found %d", maxHidden, s.HiddenSize)
	case s.Kind == R2R && (s.LogitsSize < 1 || s.LogitsSize > MaxLogits):
		return fmt.Errorf("logits_size: expected 1 to %d, found %d", MaxLogits, s.LogitsSize)
	case s.Kind != R2R && s.NormalizeInput:
		return fmt.Errorf("normalize_input: is for r2r alone")
	case s.Threshold != nil && !(*s.Threshold >= 0 && *s.Threshold <= 1):
		return fmt.Errorf("threshold: expected 0 to 1, found %v", *s.Threshold)
	}
	return nil
}

// Encode writes NAME.json.
func (s *Sidecar) Encode() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBad, err)
	}
	text, err := json.MarshalIndent(s, "", "  ")
	return append(text, '\n'), err
}

// suggestion is the known key that a wrong one is close to.
func suggestion(name string) string {
	if key := near.Word(name, slices.Concat(required(), optional())); key != "" {
		return fmt.Sprintf("; did you mean %q?", key)
	}
	return ""
}
