package pickle

import (
	"strings"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// What a program may name. Everything else is refused.
const (
	orderedDict   global = "collections.OrderedDict"
	rebuildTensor global = "torch._utils._rebuild_tensor_v2"
)

// storageType is the element type of a storage's class, empty for other names.
func storageType(g global) model.DType {
	switch g {
	case "torch.FloatStorage":
		return model.F32
	case "torch.HalfStorage":
		return model.F16
	case "torch.BFloat16Storage":
		return model.BF16
	case "torch.LongStorage":
		return model.I64
	}
	return ""
}

// inert are names that stand for element types in a net's settings.
func inert(g global) bool {
	switch g {
	case "torch.float32", "torch.float64", "torch.float16", "torch.bfloat16", "torch.int64":
		return true
	}
	return false
}

// global pushes a function or class, if it is one of those above.
func (m *machine) global(op byte) error {
	var parts [2]string
	for i := range parts {
		var err error
		if op == opGlobal {
			parts[i], err = m.line()
		} else {
			// The name is on top of the module.
			var v Value
			v, err = m.pop()
			text, ok := v.(string)
			if err == nil && (!ok || len(text) > maxName) {
				err = corrupt("a name of type %T", v)
			}
			parts[1-i] = text
		}
		if err != nil {
			return err
		}
	}
	g := global(parts[0] + "." + parts[1])
	switch {
	case strings.Contains(parts[0], "\n"), strings.Contains(parts[1], "."):
		return refused("the name %q", g)
	case g == orderedDict, g == rebuildTensor, storageType(g) != "":
		return m.push(g)
	case inert(g):
		return m.push(Name(g))
	}
	return refused("it calls %q, which is neither a tensor nor a plain value: unpickling it could run any code", g)
}

// persistent turns ("storage", class, key, place, elements) into a storage. Older files
// have a sixth part, of views, which must be None.
func (m *machine) persistent() error {
	v, err := m.pop()
	if err != nil {
		return err
	}
	id, ok := v.(Tuple)
	if !ok || len(id) != 5 && !(len(id) == 6 && id[5] == nil) || id[0] != Value("storage") {
		return refused("a reference to something that is no storage")
	}
	class, isClass := id[1].(global)
	key, isKey := id[2].(string)
	elems, isNumber := id[4].(int64)
	dtype := storageType(class)
	switch {
	case !isClass || dtype == "" || !isKey || !isNumber:
		return corrupt("a storage of class %s", show(id[1]))
	case key == "" || len(key) > maxName || strings.ContainsAny(key, "/\\"):
		return corrupt("a storage with the name %.80q", key)
	case elems < 0 || elems > maxElems:
		return corrupt("a storage of %d elements", elems)
	}
	s, known := m.storages[key]
	if !known {
		if len(m.storages) == maxTensors {
			return corrupt("more than %d storages", maxTensors)
		}
		s = &storage{key, dtype, int(elems)}
		m.storages[key] = s
	}
	if s.dtype != dtype || s.elems != int(elems) {
		return corrupt("the storage %q is %d of %s and %d of %s", key, s.elems, s.dtype, elems, dtype)
	}
	return m.push(s)
}

// reduce calls a function: an empty OrderedDict, or a tensor.
func (m *machine) reduce() error {
	arguments, err := m.pop()
	if err != nil {
		return err
	}
	function, err := m.pop()
	if err != nil {
		return err
	}
	args, ok := arguments.(Tuple)
	if !ok {
		return corrupt("arguments of type %T", arguments)
	}
	switch function {
	case Value(orderedDict):
		if len(args) != 0 {
			return refused("an OrderedDict made of %d arguments", len(args))
		}
		return m.push(&Dict{})
	case Value(rebuildTensor):
		t, err := m.tensor(args)
		if err != nil {
			return err
		}
		return m.push(t)
	}
	return refused("a call of %T", function)
}

// tensor checks the arguments (storage, offset, shape, strides, gradient, hooks).
func (m *machine) tensor(args Tuple) (*Tensor, error) {
	if len(args) < 6 || len(args) > 7 {
		return nil, corrupt("a tensor of %d arguments", len(args))
	}
	store, ok := args[0].(*storage)
	offset, isNumber := args[1].(int64)
	if !ok || !isNumber {
		return nil, corrupt("a tensor of %T at %T", args[0], args[1])
	}
	if m.tensors++; m.tensors > maxTensors {
		return nil, corrupt("more than %d tensors", maxTensors)
	}
	t := &Tensor{DType: store.dtype, offset: int(offset), store: store}
	var err error
	if t.Shape, err = sizes(args[2], store.elems); err != nil {
		return nil, err
	}
	if t.stride, err = sizes(args[3], store.elems); err != nil {
		return nil, err
	}
	if offset < 0 || offset > int64(store.elems) || len(t.Shape) != len(t.stride) {
		return nil, corrupt("a tensor at %d of %d elements, shape %v, strides %v", offset, store.elems, t.Shape, t.stride)
	}
	// Every factor and every sum is bounded by the storage before it is used.
	elems, last := 1, int(offset)
	for i, n := range t.Shape {
		if n > 0 && elems > store.elems/n {
			return nil, corrupt("a tensor of shape %v in a storage of %d elements", t.Shape, store.elems)
		}
		elems *= n
		if n > 1 && t.stride[i] > (store.elems-last)/(n-1) {
			return nil, corrupt("a tensor of shape %v, strides %v at %d of %d elements", t.Shape, t.stride, offset, store.elems)
		}
		last += max(n-1, 0) * t.stride[i]
	}
	if elems > 0 && last >= store.elems {
		return nil, corrupt("a tensor of shape %v, strides %v at %d of %d elements", t.Shape, t.stride, offset, store.elems)
	}
	return t, nil
}

// sizes reads a tuple of numbers from 0 to limit. A stride may be as large as its
// dimension is short, so limit is that of the storage, and at least 1.
func sizes(v Value, limit int) ([]int, error) {
	list, ok := v.(Tuple)
	if !ok || len(list) > maxRank {
		return nil, corrupt("a shape of type %T", v)
	}
	out := make([]int, len(list))
	for i, x := range list {
		n, ok := x.(int64)
		if !ok || n < 0 || n > int64(max(limit, 1)) {
			return nil, corrupt("a shape with %s in a storage of %d elements", show(x), limit)
		}
		out[i] = int(n)
	}
	return out, nil
}

// build sets attributes. torch.save writes versions of modules on the dict of a net,
// which have no use here; nothing else may have attributes.
func (m *machine) build() error {
	state, err := m.pop()
	if err != nil {
		return err
	}
	target, err := m.top()
	if err != nil {
		return err
	}
	attributes, ok := state.(*Dict)
	if _, isDict := target.(*Dict); !ok || !isDict {
		return refused("attributes for %T", target)
	}
	for _, key := range attributes.Keys {
		if key != Value("_metadata") {
			return refused("the attribute %s", show(key))
		}
	}
	return nil
}
