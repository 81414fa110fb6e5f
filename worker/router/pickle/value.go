package pickle

import (
	"errors"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

var (
	// ErrCorrupt says that a file breaks its format.
	ErrCorrupt = errors.New("corrupt torch file")
	// ErrRefused says that a file asks for something that could run code, or that this
	// reader does not know.
	ErrRefused = errors.New("refused in a torch file")
)

// Value is what a pickle can build: nil, bool, int64, float64, string, Long, Name,
// Tuple, *List, *Dict or *Tensor.
type Value any

// Long is an integer of more than 64 bits, little-endian two's complement.
type Long string

// Name is a name that stands for itself, such as torch.float32.
type Name string

// Tuple is a fixed list.
type Tuple []Value

// List grows while it is read; it may contain itself.
type List struct{ Items []Value }

// Dict has its keys in order of insertion. Keys are strings or integers.
type Dict struct {
	Keys   []Value
	values map[Value]Value
}

// Get returns the value of a key; nil and false if it is not there.
func (d *Dict) Get(key Value) (Value, bool) {
	v, ok := d.values[key]
	return v, ok
}

// Tensor is a view of a storage. Its bytes are in the file.
type Tensor struct {
	DType  model.DType
	Shape  []int
	stride []int
	offset int // elements
	store  *storage
}

// storage is an array in the file.
type storage struct {
	key   string
	dtype model.DType
	elems int
}

// Bounds of a program and of what it builds.
const (
	maxProgram = 4 << 20 // bytes
	maxValues  = 1 << 20 // that are ever pushed on the stack
	maxStack   = 1 << 16 // values on the stack
	maxMarks   = 1 << 10
	maxMemo    = 1 << 18
	maxString  = 64 << 10 // bytes
	maxName    = 256      // bytes of a function's or a class's
	maxTensors = 1 << 14
	maxRank    = 8
	maxElems   = 1 << 31
)
