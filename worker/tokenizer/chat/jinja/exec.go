package jinja

// body runs statements until one ends the loop's turn.
func (f *frame) body(body []stmt) flow {
	for _, s := range body {
		f.step()
		if how := s.exec(f); how != flowOn {
			return how
		}
	}
	return flowOn
}

func (s *dataStmt) exec(f *frame) flow {
	f.write(Text{s: s.text})
	return flowOn
}

func (s *outStmt) exec(f *frame) flow {
	f.write(f.str(s.of.eval(f)))
	return flowOn
}

func (s *ifStmt) exec(f *frame) flow {
	for i, t := range s.tests {
		if truth(t.eval(f)) {
			return f.body(s.bodies[i])
		}
	}
	return f.body(s.other)
}

func (s *flowStmt) exec(*frame) flow { return s.f }

func (s *blockStmt) exec(f *frame) flow { return f.inner().body(s.body) }

func (s *setStmt) exec(f *frame) flow {
	if s.v != nil {
		f.assign(&s.into, s.v.eval(f))
		return flowOn
	}
	var v Value = f.capture(func() { f.inner().body(s.body) })
	for _, x := range s.filters {
		v = x.apply(f, v)
	}
	f.assign(&s.into, v)
	return flowOn
}

func (s *filterStmt) exec(f *frame) flow {
	var v Value = f.capture(func() { f.inner().body(s.body) })
	for _, x := range s.filters {
		v = x.apply(f, v)
	}
	f.write(f.str(v))
	return flowOn
}

func (s *withStmt) exec(f *frame) flow {
	in := f.inner()
	for i := range s.into {
		in.assign(&s.into[i], s.v[i].eval(f))
	}
	return in.body(s.body)
}

func (s *macroStmt) exec(f *frame) flow {
	f.scope.set(s.m.name, &macro{s.m, f.scope})
	return flowOn
}

func (s *callStmt) exec(f *frame) flow {
	fn := s.call.of.eval(f)
	a := s.call.args.eval(f)
	a.names = append(a.names, "caller")
	a.named = append(a.named, &macro{s.m, f.scope})
	f.write(f.str(f.callValue(fn, a)))
	return flowOn
}

// macro is a macro with the scope that it was made in.
type macro struct {
	def   *macroDef
	scope *scope
}

func (m *macro) call(r *run, a arguments) Value {
	defer r.enter()()
	d := m.def
	f := &frame{r, &scope{outer: m.scope}}
	rest := arguments{}
	taken := make([]bool, len(a.names))
	for i, name := range d.names {
		v, ok := Value(nil), false
		if i < len(a.pos) {
			v, ok = a.pos[i], true
		}
		for k, n := range a.names {
			if n == name {
				if ok {
					failf("macro %s: argument %s twice", d.name, name)
				}
				v, ok, taken[k] = a.named[k], true, true
			}
		}
		if k := i - (len(d.names) - len(d.defaults)); !ok && k >= 0 {
			v, ok = d.defaults[k].eval(f), true
		}
		if !ok {
			v = &undefined{name}
		}
		f.scope.set(name, v)
	}
	if len(a.pos) > len(d.names) {
		rest.pos = a.pos[len(d.names):]
	}
	for k, n := range a.names {
		switch {
		case taken[k]:
		case n == "caller" && d.caller:
			f.scope.set(n, a.named[k])
		default:
			rest.names, rest.named = append(rest.names, n), append(rest.named, a.named[k])
		}
	}
	m.bindRest(f, rest)
	return r.capture(func() { f.body(d.body) })
}

// bindRest puts away what the macro's names did not take.
func (m *macro) bindRest(f *frame, rest arguments) {
	d := m.def
	switch {
	case d.variadic:
		f.scope.set("varargs", &List{Items: rest.pos, tuple: true})
	case len(rest.pos) > 0:
		failf("macro %s takes %d arguments, found %d more", d.name, len(d.names), len(rest.pos))
	}
	switch {
	case d.keywords:
		kw := NewDict()
		for i, n := range rest.names {
			kw.Set(own(n), rest.named[i])
		}
		f.scope.set("kwargs", kw)
	case len(rest.names) > 0:
		failf("macro %s has no argument %s", d.name, rest.names[0])
	}
	if d.caller {
		if _, ok := f.scope.vars["caller"]; !ok {
			f.scope.set("caller", &undefined{"caller"})
		}
	}
}

// loop is the variable of that name.
type loop struct {
	items []Value
	at    int // index0
	depth int // 1 in the outermost
	// again runs the loop's body over other items; nil unless the loop is recursive.
	again   func(items []Value, depth int) Text
	changed *List
}

func (s *forStmt) exec(f *frame) flow {
	return s.over1(f, f.iterate(s.over.eval(f)), 1)
}

// over1 runs the loop over items at a depth.
func (s *forStmt) over1(f *frame, items []Value, depth int) flow {
	if s.test != nil {
		var some []Value
		for _, v := range items {
			f.step()
			in := f.inner()
			in.assign(&s.into, v)
			if truth(s.test.eval(in)) {
				some = append(some, v)
			}
		}
		f.use(16 * len(some))
		items = some
	}
	if len(items) == 0 {
		return f.inner().body(s.other)
	}
	l := &loop{items: items, depth: depth}
	if s.recursive {
		l.again = func(items []Value, depth int) Text {
			defer f.enter()()
			return f.capture(func() { s.over1(f, items, depth) })
		}
	}
	for i, v := range items {
		f.step()
		l.at = i
		in := f.inner()
		in.scope.set("loop", l)
		in.assign(&s.into, v)
		if in.body(s.body) == flowBreak {
			break
		}
	}
	return flowOn
}

// field is an attribute of the loop.
func (l *loop) field(name string) Value {
	neighbour := func(i int) Value {
		if i < 0 || i >= len(l.items) {
			return &undefined{"loop." + name}
		}
		return l.items[i]
	}
	switch name {
	case "index":
		return int64(l.at + 1)
	case "index0":
		return int64(l.at)
	case "revindex":
		return int64(len(l.items) - l.at)
	case "revindex0":
		return int64(len(l.items) - l.at - 1)
	case "first":
		return l.at == 0
	case "last":
		return l.at == len(l.items)-1
	case "length":
		return int64(len(l.items))
	case "depth":
		return int64(l.depth)
	case "depth0":
		return int64(l.depth - 1)
	case "previtem":
		return neighbour(l.at - 1)
	case "nextitem":
		return neighbour(l.at + 1)
	case "cycle":
		return &function{"cycle", func(r *run, a arguments) Value {
			if len(a.pos) == 0 {
				failf("cycle of nothing")
			}
			return a.pos[l.at%len(a.pos)]
		}}
	case "changed":
		return &function{"changed", func(r *run, a arguments) Value {
			now := &List{Items: a.pos, tuple: true}
			same := l.changed != nil && r.equal(l.changed, now, 0)
			l.changed = now
			return !same
		}}
	}
	return &undefined{"loop." + name}
}

func (l *loop) call(r *run, a arguments) Value {
	if l.again == nil || len(a.pos) != 1 {
		failf("loop can be called only in a recursive loop, with what to go over")
	}
	return l.again(r.iterate(a.pos[0]), l.depth+1)
}
