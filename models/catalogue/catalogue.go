package catalogue

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

//go:embed catalogue.yaml
var file []byte

// ErrUnknown says that the catalogue has no model of that name.
var ErrUnknown = errors.New("catalogue: unknown model")

// Entry is one model.
type Entry struct {
	Name string
	// Hub is the id on the model hub, owner/name.
	Hub string
	// RealVocab is the number of ids of the tokenizer; rows of the output head above it are padding.
	RealVocab int
	// Config is the body of config.json.
	Config json.RawMessage
}

// Catalogue is a set of models by name. It does not change.
type Catalogue struct{ entries map[string]Entry }

// maxFile bounds a catalogue file.
const maxFile = 1 << 20

// Default is the embedded catalogue.
func Default() (*Catalogue, error) { return Parse(file) }

// Parse reads a catalogue. Unknown fields, missing ones and names with upper case are errors.
func Parse(data []byte) (*Catalogue, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("catalogue: expected at most %d bytes, found %d", maxFile, len(data))
	}
	var f struct {
		Models map[string]struct {
			Hub       string         `yaml:"hub"`
			RealVocab int            `yaml:"real_vocab"`
			Config    map[string]any `yaml:"config"`
		} `yaml:"models"`
	}
	if err := yaml.NewDecoder(bytes.NewReader(data), yaml.DisallowUnknownField()).Decode(&f); err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	c := &Catalogue{entries: make(map[string]Entry, len(f.Models))}
	for name, m := range f.Models {
		owner, repo, ok := strings.Cut(m.Hub, "/")
		if name == "" || name != strings.ToLower(name) || strings.ContainsAny(name, "/\\ ") {
			return nil, fmt.Errorf("catalogue: model %q: a name has lower-case letters and no space or slash", name)
		}
		if !ok || owner == "" || repo == "" || strings.Contains(repo, "/") {
			return nil, fmt.Errorf("catalogue: model %s: hub: expected owner/name, found %q", name, m.Hub)
		}
		if m.RealVocab <= 0 || len(m.Config) == 0 {
			return nil, fmt.Errorf("catalogue: model %s: real_vocab and config are required", name)
		}
		body, err := json.Marshal(m.Config)
		if err != nil {
			return nil, fmt.Errorf("catalogue: model %s: config: %w", name, err)
		}
		c.entries[name] = Entry{Name: name, Hub: m.Hub, RealVocab: m.RealVocab, Config: body}
	}
	return c, nil
}

// Names lists the models in order.
func (c *Catalogue) Names() []string { return slices.Sorted(maps.Keys(c.entries)) }

// Find returns a model by its name, upper or lower case, or by its hub id.
func (c *Catalogue) Find(name string) (Entry, error) {
	if e, ok := c.entries[strings.ToLower(name)]; ok {
		return e, nil
	}
	for _, e := range c.entries {
		if strings.EqualFold(e.Hub, name) {
			return e, nil
		}
	}
	return Entry{}, fmt.Errorf("%w: %q (known: %s)", ErrUnknown, name, strings.Join(c.Names(), ", "))
}
