package jinja

import (
	"strings"
	"time"
)

// maxRange bounds a range, as the reference implementation's sandbox does.
const maxRange = 100_000

// fixed are the functions that variables cannot shadow.
func (r *run) fixed(name string) Value {
	switch name {
	case "raise_exception":
		return &function{name, func(r *run, a arguments) Value {
			a.only(name, "message")
			panic(fault{&Raised{r.str(a.or(0, "message", own(""))).s}})
		}}
	case "strftime_now":
		if r.env.Now == nil {
			return nil
		}
		return &function{name, func(r *run, a arguments) Value {
			a.only(name, "format")
			return own(strftime(r.env.Now(), a.text(0, "format", "").s))
		}}
	}
	return nil
}

func globalNamed(name string) Value {
	switch name {
	case "range":
		return &function{name, rangeOf}
	case "dict":
		return &function{name, func(r *run, a arguments) Value { return dictOf(r, a) }}
	case "namespace":
		return &function{name, func(r *run, a arguments) Value { return &namespace{dictOf(r, a)} }}
	case "cycler":
		return &function{name, func(r *run, a arguments) Value {
			if len(a.pos) == 0 {
				failf("cycler of nothing")
			}
			return &cycler{items: a.pos}
		}}
	case "joiner":
		return &function{name, func(r *run, a arguments) Value {
			a.only(name, "sep")
			return &joiner{sep: a.text(0, "sep", ", ")}
		}}
	}
	return nil
}

func rangeOf(r *run, a arguments) Value {
	a.only("range", "start", "stop", "step")
	from, to, step := 0, 0, a.int(2, "step", 1)
	switch len(a.pos) {
	case 1:
		to = a.int(0, "stop", 0)
	case 2, 3:
		from, to = a.int(0, "start", 0), a.int(1, "stop", 0)
	default:
		failf("range needs 1 to 3 numbers")
	}
	if step == 0 {
		failf("range with steps of zero")
	}
	var items []Value
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		if len(items) == maxRange {
			failf("%w: a range of more than %d", ErrBudget, maxRange)
		}
		items = append(items, int64(i))
		if next := i + step; step > 0 && next < i || step < 0 && next > i {
			break // the next one does not fit
		}
	}
	return r.list(items)
}

// dictOf is dict(...): a dict or pairs, and names.
func dictOf(r *run, a arguments) *Dict {
	d := NewDict()
	if len(a.pos) > 1 {
		failf("dict takes one value, found %d", len(a.pos))
	}
	if len(a.pos) == 1 {
		switch from := a.pos[0].(type) {
		case *Dict:
			for i, k := range from.keys {
				d.Set(k, from.values[i])
			}
		default:
			for _, pair := range r.iterate(from) {
				kv := r.iterate(pair)
				if len(kv) != 2 {
					failf("dict needs pairs")
				}
				d.Set(kv[0], kv[1])
			}
		}
	}
	for i, n := range a.names {
		d.Set(own(n), a.named[i])
	}
	r.use(32 * d.Len())
	return d
}

// cycler goes round its items.
type cycler struct {
	items []Value
	at    int
}

func (c *cycler) field(name string) Value {
	switch name {
	case "current":
		return c.items[c.at]
	case "next":
		return &function{name, func(*run, arguments) Value {
			v := c.items[c.at]
			c.at = (c.at + 1) % len(c.items)
			return v
		}}
	case "reset":
		return &function{name, func(*run, arguments) Value { c.at = 0; return nil }}
	}
	return &undefined{"cycler." + name}
}

// joiner gives nothing the first time and its separator from then on.
type joiner struct {
	sep  Text
	used bool
}

func (j *joiner) call() Value {
	if !j.used {
		j.used = true
		return Text{}
	}
	return j.sep
}

// strftime writes a date as C does, in the plain locale.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'j': "002", 'm': "01", 'M': "04",
		'p': "PM", 'S': "05", 'y': "06", 'Y': "2006", 'z': "-0700", 'Z': "MST", 'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'h': "Jan", 'R': "15:04",
		'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		c, plain := format[i], false
		if c == '-' && i+1 < len(format) {
			i++
			c, plain = format[i], true // without the zero
		}
		layout, ok := layouts[c]
		switch {
		case c == '%':
			b.WriteByte('%')
		case !ok:
			failf("strftime: %%%c is not known here", c)
		case plain:
			b.WriteString(strings.TrimLeft(t.Format(layout), "0 "))
		default:
			b.WriteString(t.Format(layout))
		}
	}
	return b.String()
}
