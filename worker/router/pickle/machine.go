package pickle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// mark is on the stack where a list of arguments begins.
type mark struct{}

// global is a function or class that a program has named.
type global string

// machine runs one program.
type machine struct {
	in       []byte
	at       int
	stack    []Value
	marks    []int // where on the stack
	memo     map[uint32]Value
	storages map[string]*storage
	tensors  int
	pushed   int
}

// run executes a program from the beginning of in, and returns what it built and how
// long it was. storages collects the arrays that it names.
func run(in []byte, storages map[string]*storage) (Value, int, error) {
	m := &machine{in: in, memo: map[uint32]Value{}, storages: storages}
	for {
		at := m.at
		op, err := m.byte()
		if err == nil && op == opStop {
			v, err := m.result()
			return v, m.at, err
		}
		if err == nil {
			err = m.step(op)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("byte %d: %w", at, err)
		}
	}
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// show is a value for a message: short, and never the inside of one that may contain
// itself.
func show(v Value) string {
	switch v := v.(type) {
	case int64:
		return fmt.Sprint(v)
	case string:
		return fmt.Sprintf("%.80q", v)
	case global:
		return fmt.Sprintf("%.80q", string(v))
	}
	return fmt.Sprintf("%T", v)
}

// result is what is left on the stack at the end.
func (m *machine) result() (Value, error) {
	if len(m.stack) != 1 || len(m.marks) > 0 {
		return nil, corrupt("%d values at the end, expected 1", len(m.stack))
	}
	return m.pop()
}

// The instructions that are known. Others are refused.
const (
	opMark            = '('
	opStop            = '.'
	opPop             = '0'
	opPopMark         = '1'
	opBinFloat        = 'G'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opNone            = 'N'
	opBinPersID       = 'Q'
	opReduce          = 'R'
	opBinUnicode      = 'X'
	opEmptyList       = ']'
	opAppend          = 'a'
	opBuild           = 'b'
	opGlobal          = 'c'
	opAppends         = 'e'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opList            = 'l'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opSetItem         = 's'
	opTuple           = 't'
	opEmptyTuple      = ')'
	opSetItems        = 'u'
	opEmptyDict       = '}'
	opProto           = 0x80
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opShortBinUnicode = 0x8c
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95
)

// step executes one instruction.
func (m *machine) step(op byte) error {
	switch op {
	case opProto:
		version, err := m.byte()
		if err == nil && (version < 2 || version > 5) {
			err = refused("protocol %d", version)
		}
		return err
	case opFrame:
		_, err := m.bytes(8)
		return err
	case opPop, opPopMark, opMark:
		return m.shuffle(op)
	case opBinPut, opLongBinPut, opMemoize, opBinGet, opLongBinGet:
		return m.remember(op)
	case opTuple, opEmptyTuple, opTuple1, opTuple2, opTuple3, opList:
		return m.gather(op)
	case opAppend, opAppends, opSetItem, opSetItems:
		return m.add(op)
	case opGlobal, opStackGlobal:
		return m.global(op)
	case opBinPersID:
		return m.persistent()
	case opReduce:
		return m.reduce()
	case opBuild:
		return m.build()
	}
	v, err := m.literal(op)
	if err != nil {
		return err
	}
	return m.push(v)
}

// literal reads a value that stands in the program.
func (m *machine) literal(op byte) (Value, error) {
	switch op {
	case opNone:
		return nil, nil
	case opNewTrue:
		return true, nil
	case opNewFalse:
		return false, nil
	case opEmptyList:
		return &List{}, nil
	case opEmptyDict:
		return &Dict{}, nil
	case opBinInt:
		b, err := m.bytes(4)
		if err != nil {
			return nil, err
		}
		return int64(int32(binary.LittleEndian.Uint32(b))), nil
	case opBinInt1:
		b, err := m.byte()
		return int64(b), err
	case opBinInt2:
		b, err := m.bytes(2)
		if err != nil {
			return nil, err
		}
		return int64(binary.LittleEndian.Uint16(b)), nil
	case opLong1:
		return m.long()
	case opBinFloat:
		b, err := m.bytes(8)
		if err != nil {
			return nil, err
		}
		return math.Float64frombits(binary.BigEndian.Uint64(b)), nil
	case opBinUnicode, opShortBinUnicode:
		return m.text(op)
	}
	return nil, refused("instruction %#02x (%q)", op, rune(op))
}

func (m *machine) long() (Value, error) {
	n, err := m.byte()
	if err != nil {
		return nil, err
	}
	b, err := m.bytes(int(n))
	switch {
	case err != nil:
		return nil, err
	case n > 8:
		return Long(b), nil
	case n == 0:
		return int64(0), nil
	}
	// The sign is in the last byte.
	v := int64(int8(b[n-1]))
	for i := int(n) - 2; i >= 0; i-- {
		v = v<<8 | int64(b[i])
	}
	return v, nil
}

func (m *machine) text(op byte) (Value, error) {
	n := uint32(0)
	if op == opShortBinUnicode {
		b, err := m.byte()
		if err != nil {
			return nil, err
		}
		n = uint32(b)
	} else {
		b, err := m.bytes(4)
		if err != nil {
			return nil, err
		}
		n = binary.LittleEndian.Uint32(b)
	}
	if n > maxString {
		return nil, corrupt("a string of %d bytes, expected at most %d", n, maxString)
	}
	b, err := m.bytes(int(n))
	return string(b), err
}

func (m *machine) byte() (byte, error) {
	b, err := m.bytes(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// bytes takes n bytes of the program.
func (m *machine) bytes(n int) ([]byte, error) {
	if n > len(m.in)-m.at {
		return nil, corrupt("the program ends early")
	}
	b := m.in[m.at : m.at+n]
	m.at += n
	return b, nil
}

// line takes the program up to the next line feed.
func (m *machine) line() (string, error) {
	rest := m.in[m.at:min(len(m.in), m.at+maxName+1)]
	n := bytes.IndexByte(rest, '\n')
	if n < 0 {
		return "", corrupt("a name of more than %d bytes", maxName)
	}
	m.at += n + 1
	return string(rest[:n]), nil
}

func (m *machine) push(v Value) error {
	if len(m.stack) == maxStack {
		return corrupt("more than %d values on the stack", maxStack)
	}
	if m.pushed++; m.pushed > maxValues {
		return corrupt("more than %d values", maxValues)
	}
	m.stack = append(m.stack, v)
	return nil
}

// floor is how far down the stack an instruction may take values.
func (m *machine) floor() int {
	if len(m.marks) == 0 {
		return 0
	}
	return m.marks[len(m.marks)-1] + 1
}

func (m *machine) pop() (Value, error) {
	n := len(m.stack)
	if n <= m.floor() {
		return nil, corrupt("nothing on the stack")
	}
	v := m.stack[n-1]
	m.stack = m.stack[:n-1]
	return v, nil
}

// top is the value on the stack's end, which stays.
func (m *machine) top() (Value, error) {
	n := len(m.stack)
	if n <= m.floor() {
		return nil, corrupt("nothing on the stack")
	}
	return m.stack[n-1], nil
}

// popMark takes everything after the last mark, and the mark. The result is a copy.
func (m *machine) popMark() ([]Value, error) {
	if len(m.marks) == 0 {
		return nil, corrupt("no mark on the stack")
	}
	at := m.marks[len(m.marks)-1]
	m.marks = m.marks[:len(m.marks)-1]
	out := slices.Clone(m.stack[at+1:])
	m.stack = m.stack[:at]
	return out, nil
}

func (m *machine) shuffle(op byte) (err error) {
	switch op {
	case opMark:
		if len(m.marks) == maxMarks {
			return corrupt("more than %d marks on the stack", maxMarks)
		}
		m.marks = append(m.marks, len(m.stack))
		return m.push(mark{})
	case opPopMark:
		_, err = m.popMark()
	default:
		_, err = m.pop()
	}
	return err
}

// remember stores the top of the stack under a number, or brings one back.
func (m *machine) remember(op byte) error {
	var number uint32
	switch op {
	case opBinPut, opBinGet:
		b, err := m.byte()
		if err != nil {
			return err
		}
		number = uint32(b)
	case opLongBinPut, opLongBinGet:
		b, err := m.bytes(4)
		if err != nil {
			return err
		}
		number = binary.LittleEndian.Uint32(b)
	default:
		number = uint32(len(m.memo))
	}
	if op == opBinGet || op == opLongBinGet {
		v, ok := m.memo[number]
		if !ok {
			return corrupt("nothing is remembered as %d", number)
		}
		return m.push(v)
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	if _, known := m.memo[number]; !known && len(m.memo) == maxMemo {
		return corrupt("more than %d values are remembered", maxMemo)
	}
	m.memo[number] = v
	return nil
}

// gather makes a tuple or list of values on the stack.
func (m *machine) gather(op byte) error {
	if op == opTuple || op == opList {
		items, err := m.popMark()
		if err != nil {
			return err
		}
		if op == opList {
			return m.push(&List{Items: items})
		}
		return m.push(Tuple(items))
	}
	n := 0
	if op != opEmptyTuple {
		n = int(op-opTuple1) + 1
	}
	if len(m.stack)-n < m.floor() {
		return corrupt("too little on the stack")
	}
	items := slices.Clone(m.stack[len(m.stack)-n:])
	m.stack = m.stack[:len(m.stack)-n]
	return m.push(Tuple(items))
}

// add puts values into the list or dict below them.
func (m *machine) add(op byte) (err error) {
	var items []Value
	switch op {
	case opAppends, opSetItems:
		items, err = m.popMark()
	default:
		n := 1
		if op == opSetItem {
			n = 2
		}
		items = make([]Value, n)
		for i := n - 1; i >= 0 && err == nil; i-- {
			items[i], err = m.pop()
		}
	}
	if err != nil {
		return err
	}
	target, err := m.top()
	if err != nil {
		return err
	}
	if op == opAppend || op == opAppends {
		list, ok := target.(*List)
		if !ok {
			return corrupt("values are appended to %T", target)
		}
		list.Items = append(list.Items, items...)
		return nil
	}
	dict, ok := target.(*Dict)
	if !ok || len(items)%2 != 0 {
		return corrupt("%d keys and values are put into %T", len(items), target)
	}
	for i := 0; i < len(items); i += 2 {
		if err := dict.put(items[i], items[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (d *Dict) put(key, value Value) error {
	switch key.(type) {
	case string, int64:
	default:
		return refused("a key of type %T", key)
	}
	if _, twice := d.values[key]; twice {
		return corrupt("the key %s twice", show(key))
	}
	if d.values == nil {
		d.values = map[Value]Value{}
	}
	d.Keys, d.values[key] = append(d.Keys, key), value
	return nil
}
