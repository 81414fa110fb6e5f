package router

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/router/pickle"
)

// Conversion is what a published file does not say of itself. Zero fields take what
// the file says.
type Conversion struct {
	// Model is the served name of the entry model. Bare state dicts do not have it.
	Model     string
	Threshold *float64
}

// Convert reads a published file of torch.save: r2r's dict of settings and state, a bare
// state dict of any kind, or one in a training script's checkpoint. Nothing in the file is
// run.
func Convert(file string, c Conversion) (_ *Checkpoint, err error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	st, err := in.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxFile {
		return nil, fmt.Errorf("%s: %w: expected a file of at most %d bytes, found %d", file, ErrBad, int64(maxFile), st.Size())
	}
	name := strings.TrimSuffix(path.Base(file), path.Ext(file))
	k, err := convert(name, in, st.Size(), c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return k, nil
}

// published is the class of the r2r net that is computed here.
const published = "HiddenStatesTokenLMHeadLogitsClassifier"

func convert(name string, in io.ReaderAt, size int64, c Conversion) (*Checkpoint, error) {
	f, err := pickle.Open(in, size)
	if err != nil {
		return nil, err
	}
	root, ok := f.Root.(*pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("%w: expected a dict, found %T", ErrBad, f.Root)
	}
	s := Sidecar{Format: 1, Source: "converted from " + name}
	state := root
	if class, ok := root.Get("model_type"); ok {
		if class != pickle.Value(published) {
			return nil, fmt.Errorf("%w: a net of type %s; only %s is computed here", ErrUnsupported, shown(class), published)
		}
		if err := s.settings(root); err != nil {
			return nil, err
		}
		if state, err = dict(root, "state_dict"); err != nil {
			return nil, err
		}
		if state == nil {
			return nil, fmt.Errorf("%w: it has no state_dict", ErrBad)
		}
	} else if inner := checkpointState(root); inner != nil {
		state = inner
	}
	if c.Model != "" {
		s.Model = c.Model
	}
	if c.Threshold != nil {
		s.Threshold = c.Threshold
	}
	tensors, err := stateTensors(f, state)
	if err != nil {
		return nil, err
	}
	if err := s.recognise(tensors); err != nil {
		return nil, err
	}
	if s.Model == "" {
		return nil, fmt.Errorf("%w: it does not say which entry model it was trained on", ErrNoModel)
	}
	return FromTensors(name, s, tensors)
}

// ErrNoModel says that a file lacks the entry model's name: give Conversion.Model.
var ErrNoModel = errors.New("no entry model")

// shown is a string of a file for a message, or its type.
func shown(v pickle.Value) string {
	if text, ok := v.(string); ok {
		return fmt.Sprintf("%.80q", text)
	}
	return fmt.Sprintf("%T", v)
}

// dict returns a dict inside another, nil if there is none.
func dict(in *pickle.Dict, key string) (*pickle.Dict, error) {
	v, ok := in.Get(key)
	if !ok || v == nil {
		return nil, nil
	}
	d, ok := v.(*pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("%w: %s: expected a dict, found %T", ErrBad, key, v)
	}
	return d, nil
}

// settings reads r2r's init_args and common_args. Sizes come from the tensors: the
// hidden size that published files state is not always theirs.
func (s *Sidecar) settings(root *pickle.Dict) error {
	args, err := dict(root, "init_args")
	if err != nil {
		return err
	}
	if args != nil {
		if v, _ := args.Get("use_position_embedding"); v == pickle.Value(true) {
			return fmt.Errorf("%w: position embeddings", ErrUnsupported)
		}
		v, _ := args.Get("normalize_input")
		s.NormalizeInput = v == pickle.Value(true)
		if name, _ := args.Get("pretrained_model_name"); name != nil {
			if text, _ := name.(string); text != "" {
				s.Model = strings.ToLower(path.Base(text))
			}
		}
	}
	common, err := dict(root, "common_args")
	if err != nil || common == nil {
		return err
	}
	switch v, _ := common.Get("threshold"); v := v.(type) {
	case nil:
	case float64:
		s.Threshold = &v
	case int64:
		whole := float64(v)
		s.Threshold = &whole
	default:
		return fmt.Errorf("%w: threshold: expected a number, found %T", ErrBad, v)
	}
	if v, _ := common.Get("input_type"); v != nil {
		items, _ := v.(pickle.Tuple)
		if list, ok := v.(*pickle.List); ok {
			items = list.Items
		}
		if !sameInputs(items) {
			return fmt.Errorf("%w: inputs other than logits, hidden_states and token", ErrUnsupported)
		}
	}
	return nil
}

func sameInputs(items []pickle.Value) bool {
	for _, want := range []string{"logits", "hidden_states", "token"} {
		if !slices.ContainsFunc(items, func(v pickle.Value) bool { return v == pickle.Value(want) }) {
			return false
		}
	}
	return len(items) == 3
}

// checkpointState is the state dict inside what training scripts save, beside the optimizer's and
// the epoch; nil if there is none, as in a bare one.
func checkpointState(root *pickle.Dict) *pickle.Dict {
	for _, key := range []string{"state_dict", "model_state_dict", "model"} {
		if v, _ := root.Get(key); v != nil {
			if d, ok := v.(*pickle.Dict); ok {
				return d
			}
		}
	}
	return nil
}

// wrapping is what torch's wrappers of a whole net (data parallel, compiled) have put before
// the name of every tensor.
func wrapping(state *pickle.Dict) (prefix string) {
	all := func(p string) bool {
		return len(state.Keys) > 0 && !slices.ContainsFunc(state.Keys, func(key pickle.Value) bool {
			name, _ := key.(string)
			return !strings.HasPrefix(name, p)
		})
	}
	for longer := true; longer; {
		longer = false
		for _, w := range []string{"module.", "_orig_mod."} {
			if all(prefix + w) {
				prefix, longer = prefix+w, true
			}
		}
	}
	return prefix
}

// maxState bounds the entries of a state dict.
const maxState = 1 << 12

// stateTensors reads a state dict, without what the model has itself and what counts
// the batches of training.
func stateTensors(f *pickle.File, state *pickle.Dict) ([]model.Tensor, error) {
	if len(state.Keys) > maxState {
		return nil, fmt.Errorf("%w: a state dict of %d entries, expected at most %d", ErrBad, len(state.Keys), maxState)
	}
	var list []model.Tensor
	total, wrapped := int64(0), wrapping(state)
	for _, key := range state.Keys {
		v, _ := state.Get(key)
		name, isText := key.(string)
		t, isTensor := v.(*pickle.Tensor)
		if !isText || !isTensor || len(name) > maxText {
			return nil, fmt.Errorf("%w: the state dict has %T under %s: expected tensors under their names", ErrBad, v, shown(key))
		}
		name = strings.TrimPrefix(name, wrapped)
		if name == "token_embeddings.weight" || strings.HasSuffix(name, ".num_batches_tracked") {
			continue
		}
		bytes := int64(t.DType.Size())
		for _, d := range t.Shape {
			bytes *= int64(d) // each tensor fits its storage, which fits the file
		}
		if total += bytes; total > maxFile {
			return nil, fmt.Errorf("%w: its tensors have more than %d bytes", ErrBad, int64(maxFile))
		}
		x, err := f.Read(name, t)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

// recognise finds the kind and the sizes by the tensors.
func (s *Sidecar) recognise(tensors []model.Tensor) error {
	for _, known := range []struct {
		name string
		kind Kind
	}{{"logits_projection.weight", R2R}, {"mlp.0.weight", CITER}, {"defer.weight", CoLLM}} {
		i := slices.IndexFunc(tensors, func(t model.Tensor) bool { return t.Name == known.name })
		if i < 0 {
			continue
		}
		shape := tensors[i].Shape
		if len(shape) == 0 || len(shape) > 2 {
			return fmt.Errorf("%w: tensor %s has shape %v", ErrBad, known.name, shape)
		}
		s.Kind = known.kind
		s.HiddenSize = shape[len(shape)-1]
		if s.Kind == R2R {
			s.HiddenSize, s.LogitsSize = shape[0], shape[len(shape)-1]
			s.NormalizeInput = s.NormalizeInput || slices.ContainsFunc(tensors, func(t model.Tensor) bool { return t.Name == "layer_norm_token.weight" })
		}
		return nil
	}
	return fmt.Errorf("%w: its tensors are those of no kind of router that is known (r2r, citer, co-llm)", ErrUnsupported)
}
