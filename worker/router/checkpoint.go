package router

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

const (
	// maxFile bounds NAME.safetensors. The largest published net has 237 MB.
	maxFile   = 4 << 30
	maxBlocks = 64
	maxWidth  = 1 << 16 // of a layer
)

// Checkpoint is a net as its authors publish it: unfolded, under their names.
type Checkpoint struct {
	// Name is the file's, without folder and extension.
	Name string
	Sidecar
	// shape is derived from the tensors.
	shape   Shape
	tensors map[string]model.Tensor
}

// Stem is the path of a router's files without their extension, from the path of
// either of them.
func Stem(path string) string {
	return strings.TrimSuffix(strings.TrimSuffix(path, ".safetensors"), ".json")
}

// Read opens a router by the path of one of its files, or of both without the
// extension.
func Read(path string) (*Checkpoint, error) {
	stem := Stem(path)
	return ReadFS(os.DirFS(filepath.Dir(stem)), filepath.Base(stem))
}

// ReadFS opens a router at the root of a file system.
func ReadFS(files fs.FS, name string) (*Checkpoint, error) {
	sidecar, err := small(files, name+".json", maxSidecar)
	if err != nil {
		return nil, fmt.Errorf("open router %s: %w", name, err)
	}
	weights, err := small(files, name+".safetensors", maxFile)
	if err != nil {
		return nil, fmt.Errorf("open router %s: %w", name, err)
	}
	return Parse(name, sidecar, weights)
}

// ReadSidecar reads what a router at the root of a file system says of itself, without
// its weights.
func ReadSidecar(files fs.FS, name string) (*Sidecar, error) {
	text, err := small(files, name+".json", maxSidecar)
	if err != nil {
		return nil, fmt.Errorf("open router %s: %w", name, err)
	}
	s, err := ParseSidecar(text)
	if err != nil {
		return nil, fmt.Errorf("router %s: %s.json: %w", name, name, err)
	}
	return s, nil
}

// small reads a file of bounded size.
func small(files fs.FS, name string, limit int64) ([]byte, error) {
	st, err := fs.Stat(files, name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > limit {
		return nil, fmt.Errorf("%s: %w: expected a file of at most %d bytes, found %d (%v)", name, ErrBad, limit, st.Size(), st.Mode().Type())
	}
	return fs.ReadFile(files, name)
}

// Parse reads a router from the contents of its files. The checkpoint aliases weights.
func Parse(name string, sidecar, weights []byte) (*Checkpoint, error) {
	s, err := ParseSidecar(sidecar)
	if err != nil {
		return nil, fmt.Errorf("router %s: %s.json: %w", name, name, err)
	}
	shard, err := model.ParseShard(name+".safetensors", weights)
	if err != nil {
		return nil, fmt.Errorf("router %s: %w", name, err)
	}
	return FromTensors(name, *s, slices.Collect(maps.Values(shard.Tensors)))
}

// FromTensors is a checkpoint of tensors in memory, which must not change while it is
// used. Every tensor must be there, and no other, each with its shape.
func FromTensors(name string, s Sidecar, tensors []model.Tensor) (*Checkpoint, error) {
	c := &Checkpoint{Name: name, Sidecar: s, tensors: make(map[string]model.Tensor, len(tensors))}
	for _, t := range tensors {
		c.tensors[t.Name] = t
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("router %s: %w: %w", name, ErrBad, err)
	}
	params, err := c.params()
	if err == nil {
		err = c.compare(params)
	}
	if err != nil {
		return nil, fmt.Errorf("router %s: %w", name, err)
	}
	return c, nil
}

// String is the net in a few words.
func (c *Checkpoint) String() string {
	return fmt.Sprintf("%s (%s for %s, width %d, %d blocks)", c.Name, c.Kind, c.Model, c.shape.Width, c.shape.Blocks)
}

// Tensors lists the tensors by name.
func (c *Checkpoint) Tensors() []model.Tensor {
	out := make([]model.Tensor, 0, len(c.tensors))
	for _, name := range slices.Sorted(maps.Keys(c.tensors)) {
		out = append(out, c.tensors[name])
	}
	return out
}

// Check says whether the net can judge a model of this hidden size and real
// vocabulary.
func (c *Sidecar) Check(hidden, vocab int) error {
	if c.HiddenSize != hidden {
		return fmt.Errorf("%w: it was trained on %s with hidden size %d, and the model's is %d", ErrBad, c.Model, c.HiddenSize, hidden)
	}
	if c.Kind == R2R && vocab < c.LogitsSize {
		return fmt.Errorf("%w: it takes the %d largest logits, and the model has %d tokens", ErrBad, c.LogitsSize, vocab)
	}
	return nil
}

// params lists what the net must have, and sets the shape from the tensors there.
func (c *Checkpoint) params() ([]model.Param, error) {
	switch c.Kind {
	case R2R:
		return c.paramsR2R()
	case CITER:
		return c.paramsCITER()
	}
	shape := []int{c.HiddenSize}
	if t, ok := c.tensors["defer.weight"]; ok && len(t.Shape) == 2 {
		shape = []int{1, c.HiddenSize}
	}
	return []model.Param{{Name: "defer.weight", Shape: shape}}, nil
}

func (c *Checkpoint) paramsR2R() ([]model.Param, error) {
	for _, name := range slices.Sorted(maps.Keys(c.tensors)) {
		switch {
		case strings.Contains(name, ".dim_change."):
			return nil, fmt.Errorf("%w: tensor %s: blocks of different widths", ErrUnsupported, name)
		case name == "backbone.position_embedding":
			return nil, fmt.Errorf("%w: tensor %s: position embeddings", ErrUnsupported, name)
		}
	}
	d, err := c.rows("backbone.input_projection.weight")
	if err != nil {
		return nil, err
	}
	f, err := c.rows("backbone.blocks.0.mlp.0.weight")
	if err != nil {
		return nil, err
	}
	h, blocks := c.HiddenSize, 0
	for c.has(fmt.Sprintf("backbone.blocks.%d.mlp.0.weight", blocks)) {
		if blocks++; blocks > maxBlocks {
			return nil, fmt.Errorf("%w: more than %d blocks", ErrUnsupported, maxBlocks)
		}
	}
	c.shape = Shape{d, f, blocks}
	list := paramList{}
	if c.NormalizeInput {
		list.norm("layer_norm_hidden_states", h)
		list.norm("layer_norm_token", h)
	}
	list.linear("logits_projection", h, c.LogitsSize)
	list.linear("combined_projection", d, 3*h)
	list.linear("backbone.input_projection", d, d)
	for i := range blocks {
		p := fmt.Sprintf("backbone.blocks.%d.", i)
		list.norm(p+"layer_norm", d)
		list.linear(p+"mlp.0", f, d)
		list.linear(p+"mlp.3", d, f)
	}
	list.norm("backbone.output_layer.0", d)
	list.linear("backbone.output_layer.1", 1, d)
	return list, nil
}

func (c *Checkpoint) paramsCITER() ([]model.Param, error) {
	width, err := c.rows("mlp.0.weight")
	if err != nil {
		return nil, err
	}
	inner, err := c.rows("mlp.4.weight")
	if err != nil {
		return nil, err
	}
	c.shape = Shape{Width: width, Inner: inner}
	list := paramList{}
	list.linear("mlp.0", width, c.HiddenSize)
	list.norm("mlp.1", width)
	list.add("mlp.1.running_mean", width)
	list.add("mlp.1.running_var", width)
	list.linear("mlp.4", inner, width)
	list.linear("linear", 1, inner)
	return list, nil
}

// paramList grows by layers.
type paramList []model.Param

func (l *paramList) add(name string, shape ...int) {
	*l = append(*l, model.Param{Name: name, Shape: shape})
}

func (l *paramList) linear(name string, out, in int) {
	l.add(name+".weight", out, in)
	l.add(name+".bias", out)
}

func (l *paramList) norm(name string, n int) {
	l.add(name+".weight", n)
	l.add(name+".bias", n)
}

func (c *Checkpoint) has(name string) bool { _, ok := c.tensors[name]; return ok }

// rows is the height of a matrix.
func (c *Checkpoint) rows(name string) (int, error) {
	t, ok := c.tensors[name]
	if !ok {
		return 0, fmt.Errorf("%w: tensor %s is missing", ErrBad, name)
	}
	if len(t.Shape) != 2 || t.Shape[0] < 1 || t.Shape[0] > maxWidth {
		return 0, fmt.Errorf("%w: tensor %s: expected 1 to %d rows, found shape %v", ErrBad, name, maxWidth, t.Shape)
	}
	return t.Shape[0], nil
}

// maxFaults bounds the list that an error has.
const maxFaults = 8

// compare reports what differs between the tensors and those expected.
func (c *Checkpoint) compare(params []model.Param) error {
	var faults []error
	fault := func(err error) {
		if len(faults) < maxFaults {
			faults = append(faults, err)
		}
	}
	known := make(map[string]bool, len(params))
	for _, p := range params {
		known[p.Name] = true
		t, ok := c.tensors[p.Name]
		switch {
		case !ok:
			fault(fmt.Errorf("%w: tensor %s is missing: expected shape %v", ErrBad, p.Name, p.Shape))
		case !slices.Equal(t.Shape, p.Shape):
			fault(fmt.Errorf("%w: tensor %s: expected shape %v, found %v", ErrBad, p.Name, p.Shape, t.Shape))
		case t.DType != model.F32 && t.DType != model.BF16 && t.DType != model.F16:
			fault(fmt.Errorf("%w: tensor %s: expected type F32, F16 or BF16, found %s", ErrUnsupported, p.Name, t.DType))
		case !finite(&t):
			fault(fmt.Errorf("%w: tensor %s has values that are not finite", ErrBad, p.Name))
		case strings.HasSuffix(p.Name, "running_var") && slices.Min(c.vector(p.Name)) < 0:
			fault(fmt.Errorf("%w: tensor %s has negative variances", ErrBad, p.Name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.tensors)) {
		if !known[name] {
			fault(fmt.Errorf("%w: tensor %s: a %s router has none of that name", ErrBad, name, c.Kind))
		}
	}
	return errors.Join(faults...)
}

// finite reports whether a tensor has neither NaN nor infinities.
func finite(t *model.Tensor) bool {
	size, at, mask := 2, 0, byte(0x7c) // the exponent's bits in the last byte, of F16
	var more byte                      // and those in the byte before it
	switch t.DType {
	case model.BF16:
		mask, more = 0x7f, 0x80
	case model.F32:
		size, at, mask, more = 4, 2, 0x7f, 0x80
	}
	for b := t.Bytes; len(b) >= size; b = b[size:] {
		if b[at+1]&mask == mask && b[at]&more == more {
			return false
		}
	}
	return true
}

// vector returns a tensor's elements. FromTensors has seen that it is there.
func (c *Checkpoint) vector(name string) []float32 {
	t := c.tensors[name]
	v, err := t.Float32()
	if err != nil {
		panic(err) // compare has seen its type
	}
	return v
}

// Encode writes both files.
func (c *Checkpoint) Encode() (sidecar, weights []byte, err error) {
	if sidecar, err = c.Sidecar.Encode(); err != nil {
		return nil, nil, err
	}
	weights, err = model.EncodeShard(c.Tensors(), nil)
	return sidecar, weights, err
}
