package chat

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ardanlabs/jinja"
	"github.com/sourcegraph/conc/panics"
)

// Budget of one render. Real templates loop a few times over the messages.
const (
	maxRenderTime = 2 * time.Second
	maxLoops      = 1 << 20
	// maxMacros also bounds the depth of recursion, well within a goroutine's stack.
	maxMacros = 50_000
	maxRange  = 1 << 16
)

// budget is what one render may use.
type budget struct {
	outputBytes int
	deadline    time.Time
}

func newBudget(inputBytes int) budget {
	return budget{
		outputBytes: outputFactor*inputBytes + outputSlack,
		deadline:    time.Now().Add(maxRenderTime),
	}
}

// jinjaEngine is the engine over ardanlabs/jinja.
type jinjaEngine struct{ template *jinja.Template }

func newJinja(source string) (engine, error) {
	var e jinjaEngine
	err := guarded(func() (err error) {
		e.template, err = jinja.Compile(rewrite(source))
		return err
	})
	return e, err
}

// guarded turns a panic of the engine into an error.
func guarded(f func() error) (err error) {
	if r := panics.Try(func() { err = f() }); r != nil {
		return fmt.Errorf("template engine failed: %w", r.AsError())
	}
	return err
}

func (e jinjaEngine) render(vars *object, b budget) (string, error) {
	values := make(map[string]jinja.Value, len(vars.keys)+8)
	for _, k := range vars.keys {
		values[k] = toJinja(vars.values[k])
	}
	add := func(name string, fn func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error)) {
		values[name] = jinja.NewCallable(name, fn)
	}
	add("raise_exception", raiseException)
	add("range", boundedRange)
	add(jsonFilter, filterJSON)
	add(loopTick, counter(maxLoops, b.deadline))
	add(macroTick, counter(maxMacros, b.deadline))
	var text string
	err := guarded(func() (err error) {
		text, err = e.template.RenderValues(values)
		return err
	})
	var own *TemplateError
	if err != nil && !errors.As(err, &own) && !errors.Is(err, ErrBudget) {
		err = fmt.Errorf("render chat template: %w", err)
	}
	return text, err
}

// counter refuses after limit calls or past the deadline.
func counter(limit int, deadline time.Time) func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	n := 0
	return func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
		n++
		if n > limit {
			return jinja.None(), fmt.Errorf("%w: more than %d rounds", ErrBudget, limit)
		}
		if n%64 == 0 && time.Now().After(deadline) {
			return jinja.None(), fmt.Errorf("%w: longer than %s", ErrBudget, maxRenderTime)
		}
		return jinja.None(), nil
	}
}

// raiseException is how a template refuses a conversation.
func raiseException(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	text := "refused"
	if len(args) > 0 && args[0].IsString() {
		text = clean(args[0].AsString())
	}
	return jinja.None(), &TemplateError{Message: text}
}

// boundedRange is Python's range, with a limit on its length.
func boundedRange(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	n := [3]int64{0, 0, 1}
	for i, a := range args {
		if i >= 3 || !a.IsInt() {
			return jinja.None(), errors.New("range wants 1 to 3 whole numbers")
		}
		n[i] = a.AsInt()
	}
	start, stop, step := n[0], n[1], n[2]
	if len(args) == 1 {
		start, stop = 0, n[0]
	}
	if len(args) == 0 || step == 0 || step == math.MinInt64 {
		return jinja.None(), errors.New("range without an end or a step")
	}
	var items []jinja.Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(items) >= maxRange {
			return jinja.None(), fmt.Errorf("%w: a range of more than %d", ErrBudget, maxRange)
		}
		items = append(items, jinja.NewInt(i))
	}
	return jinja.NewList(items), nil
}

// toJinja converts a template variable.
func toJinja(v any) jinja.Value {
	switch v := v.(type) {
	case bool:
		return jinja.NewBool(v)
	case int64:
		return jinja.NewInt(v)
	case float64:
		return jinja.NewFloat(v)
	case string:
		return jinja.NewString(v)
	case []any:
		items := make([]jinja.Value, len(v))
		for i := range v {
			items[i] = toJinja(v[i])
		}
		return jinja.NewList(items)
	case *object:
		d := jinja.NewDict()
		for _, k := range v.keys {
			d.AsDict().Set(k, toJinja(v.values[k]))
		}
		return d
	}
	return jinja.None()
}
