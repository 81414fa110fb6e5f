package jinja

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

var (
	// ErrSyntax says that a template is not one, or asks for what is not known here.
	ErrSyntax = errors.New("template syntax")
	// ErrRender says that a template cannot be rendered with these variables.
	ErrRender = errors.New("template cannot be rendered")
	// ErrBudget says that a render took more than it may.
	ErrBudget = errors.New("template is over its budget")
)

// Raised is what a template refuses with, by raise_exception.
type Raised struct{ Message string }

func (r *Raised) Error() string { return r.Message }

// fault carries an error to the package's border.
type fault struct{ err error }

func failf(format string, args ...any) { panic(fault{fmt.Errorf(format, args...)}) }

// caught turns a fault into its error. kind is put in front of those without one.
func caught(kind error, err *error) {
	switch r := recover().(type) {
	case nil:
	case fault:
		*err = r.err
		var raised *Raised
		if !errors.Is(r.err, ErrBudget) && !errors.As(r.err, &raised) {
			*err = fmt.Errorf("%w: %w", kind, r.err)
		}
	default:
		panic(r)
	}
}

const (
	maxSource = 1 << 20
	// maxNesting bounds the depth of a template's syntax.
	maxNesting = 200
)

// Template is a parsed template.
type Template struct {
	body []stmt
	// names are the variables that an expression reads.
	names map[string]bool
}

// Reads reports whether an expression anywhere in the template reads a variable.
func (t *Template) Reads(name string) bool { return t.names[name] }

// Parse reads a template. Its errors are ErrSyntax.
func Parse(source string) (t *Template, err error) {
	defer caught(ErrSyntax, &err)
	if len(source) > maxSource {
		failf("%d bytes, expected at most %d", len(source), maxSource)
	}
	if !utf8.ValidString(source) {
		failf("the template is not UTF-8")
	}
	p := &parser{tokens: lex(source), names: map[string]bool{}}
	body := p.body()
	if p.peek().kind != tokEOF {
		p.fail("a tag that belongs to none: %q", p.peek().text)
	}
	return &Template{body, p.names}, nil
}

type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int
	// soft counts the conditional blocks around: what is not known inside of one
	// fails only when it is reached, as in the reference.
	soft int
	// names are the variables read so far.
	names map[string]bool
	// macro is the innermost macro that is being read, nil outside.
	macro *macroDef
}

func (p *parser) fail(format string, args ...any) {
	failf("line %d: "+format, append([]any{p.peek().line}, args...)...)
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokEOF {
		p.at++
	}
	return t
}

// is reports whether the next token is this operator or name.
func (p *parser) is(k kind, text string) bool {
	t := p.peek()
	return t.kind == k && t.text == text
}

// take skips the next token if it is this one.
func (p *parser) take(k kind, text string) bool {
	if p.is(k, text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) op(text string) bool { return p.take(tokOp, text) }

func (p *parser) want(k kind, text string) {
	if !p.take(k, text) {
		p.fail("expected %q, found %q", text, p.peek().text)
	}
}

func (p *parser) end(k kind) {
	if p.peek().kind != k {
		p.fail("expected the end of the tag, found %q", p.peek().text)
	}
	p.at++
}

func (p *parser) name() string {
	if p.peek().kind != tokName {
		p.fail("expected a name, found %q", p.peek().text)
	}
	return p.next().text
}

// deeper bounds the recursion of the parser and, with it, that of a render.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > maxNesting {
		p.fail("nested deeper than %d", maxNesting)
	}
	return func() { p.depth-- }
}

// body reads statements up to one of the tags, whose name it leaves next, or the end.
func (p *parser) body(until ...string) []stmt {
	defer p.deeper()()
	var out []stmt
	for {
		switch t := p.peek(); t.kind {
		case tokData:
			p.at++
			out = append(out, &dataStmt{t.text})
		case tokVarBegin:
			p.at++
			e := p.tuple(true)
			p.end(tokVarEnd)
			out = append(out, &outStmt{e})
		case tokBlockBegin:
			p.at++
			if p.peek().kind == tokName && slices.Contains(until, p.peek().text) {
				return out
			}
			out = append(out, p.statement())
		case tokEOF:
			if len(until) > 0 {
				p.fail("the end of the template, expected %q", until)
			}
			return out
		default:
			p.fail("unexpected %q", t.text)
		}
	}
}

// block reads a body and the tag that ends it.
func (p *parser) block(end string) []stmt {
	p.end(tokBlockEnd)
	body := p.body(end)
	p.at++
	p.end(tokBlockEnd)
	return body
}

func (p *parser) statement() stmt {
	switch name := p.name(); name {
	case "if":
		return p.ifStatement()
	case "for":
		return p.forStatement()
	case "set":
		return p.setStatement()
	case "macro":
		m := &macroDef{name: p.name()}
		p.signature(m)
		p.macroBody(m, "endmacro")
		return &macroStmt{m}
	case "call":
		return p.callStatement()
	case "filter":
		f := p.filters()
		return &filterStmt{f, p.block("endfilter")}
	case "with":
		return p.withStatement()
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%s outside of a loop", name)
		}
		p.end(tokBlockEnd)
		if name == "break" {
			return &flowStmt{flowBreak}
		}
		return &flowStmt{flowContinue}
	case "generation": // marks answers for training, no more
		return &blockStmt{p.block("endgeneration")}
	case "do":
		e := p.tuple(true)
		p.end(tokBlockEnd)
		p.fail("do is not known here (%T)", e)
	default:
		p.fail("the tag %q is not known here", name)
	}
	return nil
}

func (p *parser) ifStatement() stmt {
	s := &ifStmt{}
	p.soft++
	defer func() { p.soft-- }()
	for {
		s.tests = append(s.tests, p.tuple(false))
		p.end(tokBlockEnd)
		s.bodies = append(s.bodies, p.body("elif", "else", "endif"))
		switch p.next().text {
		case "elif":
		case "else":
			s.other = p.block("endif")
			return s
		default:
			p.end(tokBlockEnd)
			return s
		}
	}
}

func (p *parser) forStatement() stmt {
	s := &forStmt{into: p.targets()}
	p.want(tokName, "in")
	s.over = p.tuple(false)
	if p.take(tokName, "if") {
		s.test = p.expression()
	}
	s.recursive = p.take(tokName, "recursive")
	p.end(tokBlockEnd)
	p.loops++
	s.body = p.body("else", "endfor")
	p.loops--
	if p.next().text == "else" {
		s.other = p.block("endfor")
		return s
	}
	p.end(tokBlockEnd)
	return s
}

// targets reads what a loop or an assignment binds.
func (p *parser) targets() target {
	var parts []target
	many := false
	for {
		switch {
		case p.op("("):
			parts = append(parts, p.targets())
			p.want(tokOp, ")")
		default:
			parts = append(parts, p.bindable())
		}
		if !p.op(",") {
			break
		}
		many = true
		if p.peek().kind != tokName && !p.is(tokOp, "(") || p.is(tokName, "in") {
			break
		}
	}
	if many {
		return target{parts: parts}
	}
	return parts[0]
}

func (p *parser) bindable() target {
	t := target{name: p.name()}
	if slices.Contains([]string{"true", "false", "none", "True", "False", "None"}, t.name) {
		p.fail("%s cannot be assigned to", t.name)
	}
	if p.op(".") {
		t.field = p.name()
	}
	return t
}

func (p *parser) setStatement() stmt {
	s := &setStmt{into: p.targets()}
	if p.op("=") {
		s.v = p.tuple(true)
		p.end(tokBlockEnd)
		return s
	}
	if p.op("|") {
		p.at--
		s.filters = p.filters()
	}
	s.body = p.block("endset")
	return s
}

// filters reads the filters of a block, with or without the first bar.
func (p *parser) filters() []*filterExpr {
	p.op("|")
	var out []*filterExpr
	for {
		out = append(out, p.filter(nil))
		if !p.op("|") {
			return out
		}
	}
}

func (p *parser) withStatement() stmt {
	s := &withStmt{}
	for p.peek().kind != tokBlockEnd {
		if len(s.v) > 0 {
			p.want(tokOp, ",")
		}
		s.into = append(s.into, p.targets())
		p.want(tokOp, "=")
		s.v = append(s.v, p.expression())
	}
	s.body = p.block("endwith")
	return s
}

func (p *parser) callStatement() stmt {
	m := &macroDef{name: "caller"}
	if p.is(tokOp, "(") {
		p.signature(m)
	}
	call, ok := p.expression().(*callExpr)
	if !ok {
		p.fail("expected a call")
	}
	p.macroBody(m, "endcall")
	return &callStmt{call, m}
}

func (p *parser) signature(m *macroDef) {
	p.want(tokOp, "(")
	for !p.op(")") {
		if len(m.names) > 0 {
			p.want(tokOp, ",")
			if p.op(")") {
				return
			}
		}
		m.names = append(m.names, p.bindable().name)
		if p.op("=") {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			p.fail("an argument without a default behind one with")
		}
	}
}

func (p *parser) macroBody(m *macroDef, end string) {
	outer, loops := p.macro, p.loops
	p.macro, p.loops = m, 0
	m.body = p.block(end)
	p.macro, p.loops = outer, loops
}
