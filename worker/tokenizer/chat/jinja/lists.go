package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// listFilterNamed returns a filter that works on what can be iterated over.
func listFilterNamed(name string) filter {
	switch name {
	case "join":
		return join
	case "list":
		return func(r *run, v Value, a arguments) Value { a.only(name); return r.list(slices.Clone(r.iterate(v))) }
	case "first", "last":
		return func(r *run, v Value, a arguments) Value {
			a.only(name)
			items := r.iterate(v)
			switch {
			case len(items) == 0:
				return &undefined{"the " + name + " of nothing"}
			case name == "first":
				return items[0]
			}
			return items[len(items)-1]
		}
	case "reverse":
		return reverse
	case "map":
		return mapped
	case "select", "reject", "selectattr", "rejectattr":
		return func(r *run, v Value, a arguments) Value { return r.selected(name, v, a) }
	case "items":
		return func(r *run, v Value, a arguments) Value {
			a.only(name)
			switch v := v.(type) {
			case *undefined:
				return &List{}
			case *Dict:
				return r.pairs(v)
			}
			failf("items of a %s", typeName(v))
			return nil
		}
	case "dictsort":
		return dictSort
	case "sort":
		return sortFilter
	case "unique":
		return unique
	case "min", "max":
		return func(r *run, v Value, a arguments) Value { return r.extreme(name == "max", v, a) }
	case "sum":
		return sum
	case "groupby":
		return groupBy
	case "batch":
		return batch
	case "slice":
		return sliceFilter
	}
	return nil
}

// pairs is dict.items().
func (r *run) pairs(d *Dict) *List {
	out := make([]Value, len(d.keys))
	for i, k := range d.keys {
		out[i] = &List{Items: []Value{k, d.values[i]}, tuple: true}
	}
	r.use(32 * len(out))
	return r.list(out)
}

func join(r *run, v Value, a arguments) Value {
	a.only("join", "d", "attribute")
	sep := r.str(a.or(0, "d", Text{}))
	get := r.getter(a.or(1, "attribute", nil), nil)
	var b builder
	for i, item := range r.iterate(v) {
		r.step()
		if i > 0 {
			r.use(len(sep.s))
			b.add(sep)
		}
		t := r.str(get(item))
		r.use(len(t.s))
		b.add(t)
	}
	return b.text()
}

// getter returns what reads an attribute such as "a.b" or an index; nil is the item itself.
func (r *run) getter(attribute, otherwise Value) func(Value) Value {
	if attribute == nil {
		return func(v Value) Value { return v }
	}
	parts := []Value{attribute}
	if t, ok := attribute.(Text); ok {
		parts = nil
		for _, p := range strings.Split(t.s, ".") {
			if n, err := strconv.ParseInt(p, 10, 64); err == nil {
				parts = append(parts, n)
			} else {
				parts = append(parts, own(p))
			}
		}
	}
	return func(v Value) Value {
		for _, p := range parts {
			v = r.element(v, p)
			if _, missing := v.(*undefined); missing && otherwise != nil {
				return otherwise
			}
		}
		return v
	}
}

// caseless is the key of sorts that do not tell letter cases apart.
func caseless(a *arguments, i int) func(Value) Value {
	exact := truth(a.or(i, "case_sensitive", false))
	return func(v Value) Value {
		if t, ok := v.(Text); ok && !exact {
			return own(strings.ToLower(t.s))
		}
		return v
	}
}

func reverse(r *run, v Value, a arguments) Value {
	a.only("reverse")
	if t, ok := v.(Text); ok {
		runes := []rune(t.s)
		slices.Reverse(runes)
		return r.text(Mark(string(runes), t.class()))
	}
	items := slices.Clone(r.iterate(v))
	slices.Reverse(items)
	return r.list(items)
}

func mapped(r *run, v Value, a arguments) Value {
	items := r.iterate(v)
	out := make([]Value, len(items))
	if attribute, ok := a.arg(len(a.pos), "attribute"); ok {
		a.only("map", "attribute", "default")
		get := r.getter(attribute, a.or(1, "default", nil))
		for i, item := range items {
			r.step()
			out[i] = get(item)
		}
		return r.list(out)
	}
	name, rest := a.head("map")
	call := filterNamed(name)
	if call == nil {
		failf("the filter %q is not known here", name)
	}
	for i, item := range items {
		r.step()
		out[i] = call(r, item, rest)
	}
	return r.list(out)
}

// head takes a name off the front of arguments.
func (a *arguments) head(what string) (string, arguments) {
	if len(a.pos) == 0 {
		failf("%s needs a name", what)
	}
	name, ok := a.pos[0].(Text)
	if !ok {
		failf("%s needs a name, found a %s", what, typeName(a.pos[0]))
	}
	return name.s, arguments{pos: a.pos[1:], names: a.names, named: a.named}
}

// selected is select, reject, selectattr and rejectattr.
func (r *run) selected(name string, v Value, a arguments) Value {
	get := func(v Value) Value { return v }
	if strings.HasSuffix(name, "attr") {
		if len(a.pos) == 0 {
			failf("%s needs an attribute", name)
		}
		get = r.getter(a.pos[0], nil)
		a.pos = a.pos[1:]
	}
	holds := func(v Value) bool { return truth(v) }
	if len(a.pos) > 0 {
		test, rest := a.head(name)
		call := testNamed(test)
		if call == nil {
			failf("the test %q is not known here", test)
		}
		holds = func(v Value) bool { return call(r, v, rest) }
	}
	var out []Value
	for _, item := range r.iterate(v) {
		r.step()
		if holds(get(item)) == strings.HasPrefix(name, "select") {
			out = append(out, item)
		}
	}
	return r.list(out)
}

func dictSort(r *run, v Value, a arguments) Value {
	a.only("dictsort", "case_sensitive", "by", "reverse")
	d, ok := v.(*Dict)
	if !ok {
		failf("dictsort of a %s", typeName(v))
	}
	at := 0
	switch by := a.text(1, "by", "key").s; by {
	case "key":
	case "value":
		at = 1
	default:
		failf("dictsort by %q", by)
	}
	fold := caseless(&a, 0)
	key := func(v Value) Value { return fold(v.(*List).Items[at]) }
	return &List{Items: r.sorted(r.pairs(d).Items, key, truth(a.or(2, "reverse", false)))}
}

func sortFilter(r *run, v Value, a arguments) Value {
	a.only("sort", "reverse", "case_sensitive", "attribute")
	fold := caseless(&a, 1)
	get := r.getter(a.or(2, "attribute", nil), nil)
	key := func(v Value) Value { return fold(get(v)) }
	if names, ok := a.or(2, "attribute", nil).(Text); ok && strings.Contains(names.s, ",") {
		var gets []func(Value) Value
		for _, n := range strings.Split(names.s, ",") {
			gets = append(gets, r.getter(own(n), nil))
		}
		key = func(v Value) Value {
			k := &List{}
			for _, g := range gets {
				k.Items = append(k.Items, fold(g(v)))
			}
			return k
		}
	}
	return &List{Items: r.sorted(r.iterate(v), key, truth(a.or(0, "reverse", false)))}
}

func unique(r *run, v Value, a arguments) Value {
	a.only("unique", "case_sensitive", "attribute")
	fold, get := caseless(&a, 0), r.getter(a.or(1, "attribute", nil), nil)
	seen := NewDict()
	var out []Value
	for _, item := range r.iterate(v) {
		r.step()
		key := fold(get(item))
		if _, ok := seen.get(key); !ok {
			seen.Set(key, true)
			out = append(out, item)
		}
	}
	r.use(16 * len(out))
	return r.list(out)
}

func (r *run) extreme(most bool, v Value, a arguments) Value {
	a.only("min and max", "case_sensitive", "attribute")
	fold, get := caseless(&a, 0), r.getter(a.or(1, "attribute", nil), nil)
	items := r.iterate(v)
	if len(items) == 0 {
		return &undefined{"the least or most of nothing"}
	}
	best := items[0]
	for _, item := range items[1:] {
		r.step()
		if d := r.order(fold(get(item)), fold(get(best))); most && d > 0 || !most && d < 0 {
			best = item
		}
	}
	return best
}

func sum(r *run, v Value, a arguments) Value {
	a.only("sum", "attribute", "start")
	get := r.getter(a.or(0, "attribute", nil), nil)
	total := a.or(1, "start", int64(0))
	f := &frame{run: r, scope: &scope{}}
	for _, item := range r.iterate(v) {
		total = (&binary{"+", &literal{total}, &literal{get(item)}}).eval(f)
	}
	return total
}

func groupBy(r *run, v Value, a arguments) Value {
	a.only("groupby", "attribute", "default", "case_sensitive")
	fold, get := caseless(&a, 2), r.getter(a.or(0, "attribute", nil), a.or(1, "default", nil))
	key := func(v Value) Value { return fold(get(v)) }
	var out []Value
	var group *List
	for _, item := range r.sorted(r.iterate(v), key, false) {
		if group == nil || !r.equal(key(group.Items[0]), key(item), 0) {
			group = &List{}
			out = append(out, &List{Items: []Value{get(item), group}, tuple: true})
		}
		group.Items = append(group.Items, item)
	}
	r.use(48 * len(out))
	return r.list(out)
}

func batch(r *run, v Value, a arguments) Value {
	a.only("batch", "linecount", "fill_with")
	n := a.int(0, "linecount", 0)
	if n < 1 {
		failf("batch of %d", n)
	}
	var out []Value
	for part := range slices.Chunk(r.iterate(v), n) {
		part = slices.Clone(part)
		if fill := a.or(1, "fill_with", nil); fill != nil && len(part) < n {
			r.use(16 * (n - len(part)))
			for len(part) < n {
				part = append(part, fill)
			}
		}
		out = append(out, r.list(part))
	}
	return r.list(out)
}

func sliceFilter(r *run, v Value, a arguments) Value {
	a.only("slice", "slices", "fill_with")
	items, n := r.iterate(v), a.int(0, "slices", 0)
	if n < 1 {
		failf("slice into %d", n)
	}
	r.use(16 * n)
	each, more := len(items)/n, len(items)%n
	var out []Value
	for i, at := 0, 0; i < n; i++ {
		end := at + each
		if i < more {
			end++
		}
		part := slices.Clone(items[at:end])
		if fill := a.or(1, "fill_with", nil); fill != nil && i >= more && more > 0 {
			part = append(part, fill)
		}
		out = append(out, r.list(part))
		at = end
	}
	return r.list(out)
}
