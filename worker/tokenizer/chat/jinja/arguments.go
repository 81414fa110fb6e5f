package jinja

// arguments of a call.
type arguments struct {
	pos   []Value
	names []string
	named []Value
}

// arg returns the argument at a position or with a name.
func (a *arguments) arg(i int, name string) (Value, bool) {
	if i < len(a.pos) {
		return a.pos[i], true
	}
	for k, n := range a.names {
		if n == name {
			return a.named[k], true
		}
	}
	return nil, false
}

// only refuses arguments beyond those named, in the order of their positions.
func (a *arguments) only(what string, names ...string) {
	if len(a.pos) > len(names) {
		failf("%s takes at most %d arguments, found %d", what, len(names), len(a.pos))
	}
next:
	for _, n := range a.names {
		for i, known := range names {
			if n == known {
				if i < len(a.pos) {
					failf("%s: argument %s twice", what, n)
				}
				continue next
			}
		}
		failf("%s has no argument %s", what, n)
	}
}

// or returns an argument or a default.
func (a *arguments) or(i int, name string, otherwise Value) Value {
	if v, ok := a.arg(i, name); ok {
		return v
	}
	return otherwise
}

// int returns an integer argument or a default.
func (a *arguments) int(i int, name string, otherwise int) int {
	v, ok := a.arg(i, name)
	if !ok {
		return otherwise
	}
	return smallInt(v, name)
}

// text returns a text argument or a default.
func (a *arguments) text(i int, name, otherwise string) Text {
	v, ok := a.arg(i, name)
	if !ok {
		return own(otherwise)
	}
	t, ok := v.(Text)
	if !ok {
		failf("%s: expected a text, found %s", name, typeName(v))
	}
	return t
}

func smallInt(v Value, what string) int {
	if n, _, ok := number(v); ok && n != nil && n.IsInt64() && n.Int64() == int64(int(n.Int64())) {
		return int(n.Int64())
	}
	failf("%s: expected an integer, found %s", what, typeName(v))
	return 0
}
