package jinja

import (
	"fmt"
	"time"
)

// Limits bound a render. All are required.
type Limits struct {
	Steps  int // statements and expressions evaluated
	Depth  int // of macro calls and recursive loops
	Output int // bytes written
	// Made is the bytes of texts and the elements of lists (16 each) that are made on
	// the way, together.
	Made int
	// Deadline ends the render by the clock; zero is never.
	Deadline time.Time
}

// Env is what a template sees besides the language.
type Env struct {
	// Vars are the variables. They shadow the functions range, dict, namespace,
	// cycler and joiner, but not raise_exception and strftime_now.
	Vars *Dict
	// Now gives the date for strftime_now; nil leaves that function out.
	Now func() time.Time
}

// Render runs the template. Its errors are *Raised, ErrBudget and ErrRender.
func (t *Template) Render(env Env, lim Limits) (out Text, err error) {
	defer caught(ErrRender, &err)
	r := &run{limits: lim, env: env, out: &builder{}}
	f := &frame{run: r, scope: &scope{}}
	f.body(t.body)
	return r.out.text(), nil
}

// run is one render.
type run struct {
	limits        Limits
	env           Env
	out           *builder
	steps, depth  int
	made, written int
	captured      int
}

// step counts one step.
func (r *run) step() {
	if r.steps++; r.steps > r.limits.Steps {
		failf("%w: more than %d steps", ErrBudget, r.limits.Steps)
	}
	if r.steps%1024 == 0 && !r.limits.Deadline.IsZero() && time.Now().After(r.limits.Deadline) {
		failf("%w: it took too long", ErrBudget)
	}
}

// use counts bytes before they are made.
func (r *run) use(n int) {
	if n < 0 || n > r.limits.Made-r.made {
		failf("%w: it makes more than %d bytes on the way", ErrBudget, r.limits.Made)
	}
	r.made += n
}

// made counts a text that was made.
func (r *run) text(t Text) Text {
	r.use(len(t.s))
	return t
}

// list makes a list of a counted size.
func (r *run) list(items []Value) *List {
	r.use(16 * len(items))
	return &List{Items: items}
}

// write writes to the output or to what captures it.
func (r *run) write(t Text) {
	if r.captured > 0 {
		r.use(len(t.s))
	} else if r.written += len(t.s); r.written > r.limits.Output {
		failf("%w: it writes more than %d bytes", ErrBudget, r.limits.Output)
	}
	r.out.add(t)
}

// capture returns what f writes.
func (r *run) capture(f func()) Text {
	outer := r.out
	r.out = &builder{}
	r.captured++
	f()
	t := r.out.text()
	r.out = outer
	r.captured--
	return t
}

// enter counts the depth of calls.
func (r *run) enter() func() {
	if r.depth++; r.depth > r.limits.Depth {
		failf("%w: calls deeper than %d", ErrBudget, r.limits.Depth)
	}
	return func() { r.depth-- }
}

// scope binds names. A loop's turn, a macro and a with block have scopes of their own.
type scope struct {
	vars  map[string]Value
	outer *scope
}

func (s *scope) set(name string, v Value) {
	if s.vars == nil {
		s.vars = map[string]Value{}
	}
	s.vars[name] = v
}

// frame is where a statement runs.
type frame struct {
	*run
	scope *scope
}

// inner is a frame with a scope of its own.
func (f *frame) inner() *frame { return &frame{f.run, &scope{outer: f.scope}} }

// lookup finds a name.
func (f *frame) lookup(name string) Value {
	for s := f.scope; s != nil; s = s.outer {
		if v, ok := s.vars[name]; ok {
			return v
		}
	}
	if fn := f.fixed(name); fn != nil {
		return fn
	}
	if v, ok := f.env.Vars.Get(name); ok {
		return v
	}
	if fn := globalNamed(name); fn != nil {
		return fn
	}
	return &undefined{name}
}

// assign binds what an assignment or a loop names.
func (f *frame) assign(t *target, v Value) {
	switch {
	case t.parts != nil:
		items := f.iterate(v)
		if len(items) != len(t.parts) {
			failf("expected %d values to unpack, found %d", len(t.parts), len(items))
		}
		for i := range t.parts {
			f.assign(&t.parts[i], items[i])
		}
	case t.field != "":
		ns, ok := f.lookup(t.name).(*namespace)
		if !ok {
			failf("%s is no namespace, so %s.%s cannot be set", t.name, t.name, t.field)
		}
		ns.fields.Set(own(t.field), v)
	default:
		f.scope.set(t.name, v)
	}
}

// iterate returns the elements of what a loop goes over.
func (r *run) iterate(v Value) []Value {
	switch v := v.(type) {
	case *List:
		return v.Items
	case *Dict:
		return v.keys
	case Text:
		r.use(16 * len(v.s))
		out := make([]Value, 0, len(v.s))
		for i, c := range v.s {
			out = append(out, v.slice(i, i+len(string(c))))
		}
		return out
	case *undefined:
		return nil
	}
	failf("a %s cannot be iterated over", typeName(v))
	return nil
}

func (t target) String() string { return fmt.Sprint(t.name, t.field, t.parts) }
