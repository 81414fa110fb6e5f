package jinja

func (a *argList) eval(f *frame) arguments {
	var out arguments
	for _, x := range a.pos {
		out.pos = append(out.pos, x.eval(f))
	}
	if a.spread != nil {
		out.pos = append(out.pos, f.iterate(a.spread.eval(f))...)
	}
	out.names = append(out.names, a.names...)
	for _, x := range a.named {
		out.named = append(out.named, x.eval(f))
	}
	if a.dict != nil {
		d, ok := a.dict.eval(f).(*Dict)
		if !ok {
			failf("** needs a dict")
		}
		for i, k := range d.keys {
			name, ok := k.(Text)
			if !ok {
				failf("** needs names")
			}
			out.names = append(out.names, name.s)
			out.named = append(out.named, d.values[i])
		}
	}
	f.use(16 * (len(out.pos) + len(out.named)))
	return out
}

func (e *callExpr) eval(f *frame) Value {
	f.step()
	fn := e.of.eval(f)
	return f.callValue(fn, e.args.eval(f))
}

func (r *run) callValue(fn Value, a arguments) Value {
	switch fn := fn.(type) {
	case *function:
		return fn.call(r, a)
	case *macro:
		return fn.call(r, a)
	case *loop:
		return fn.call(r, a)
	case *joiner:
		return fn.call()
	case *undefined:
		failf("%s is undefined, so it cannot be called", fn.what)
	}
	failf("a %s cannot be called", typeName(fn))
	return nil
}

func (e *filterExpr) eval(f *frame) Value { return e.apply(f, e.of.eval(f)) }

func (e *filterExpr) apply(f *frame, v Value) Value {
	f.step()
	return e.call(f.run, v, e.args.eval(f))
}

func (e *testExpr) eval(f *frame) Value {
	f.step()
	v := e.of.eval(f)
	return e.call(f.run, v, e.args.eval(f)) != e.not
}
