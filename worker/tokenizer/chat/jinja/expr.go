package jinja

import (
	"math/big"
	"strconv"
)

// The grammar of expressions, from the loosest binding to the tightest.

// tuple reads one expression, or several with commas between them.
func (p *parser) tuple(cond bool) expr {
	one := p.disjunction
	if cond {
		one = p.expression
	}
	if p.tupleEnd() {
		p.fail("expected an expression, found %q", p.peek().text)
	}
	first := one()
	if !p.is(tokOp, ",") {
		return first
	}
	items := []expr{first}
	for p.op(",") && !p.tupleEnd() {
		items = append(items, one())
	}
	return &listExpr{items: items, tuple: true}
}

func (p *parser) tupleEnd() bool {
	t := p.peek()
	return t.kind == tokVarEnd || t.kind == tokBlockEnd || t.kind == tokOp && t.text == ")"
}

func (p *parser) expression() expr {
	defer p.deeper()()
	e := p.disjunction()
	for p.take(tokName, "if") {
		c := &condExpr{then: e, test: p.disjunction()}
		if p.take(tokName, "else") {
			c.other = p.expression()
		}
		e = c
	}
	return e
}

func (p *parser) disjunction() expr {
	defer p.deeper()()
	e := p.conjunction()
	for p.take(tokName, "or") {
		e = &logic{or: true, left: e, right: p.conjunction()}
	}
	return e
}

func (p *parser) conjunction() expr {
	e := p.negation()
	for p.take(tokName, "and") {
		e = &logic{left: e, right: p.negation()}
	}
	return e
}

func (p *parser) negation() expr {
	if p.take(tokName, "not") {
		defer p.deeper()()
		return &notExpr{p.negation()}
	}
	return p.comparison()
}

func (p *parser) comparison() expr {
	c := &compare{first: p.sum()}
	for {
		op := ""
		switch t := p.peek(); {
		case t.kind == tokOp && (t.text == "==" || t.text == "!=" || t.text == "<" || t.text == "<=" || t.text == ">" || t.text == ">="):
			op = p.next().text
		case p.take(tokName, "in"):
			op = "in"
		case p.is(tokName, "not") && p.tokens[p.at+1].kind == tokName && p.tokens[p.at+1].text == "in":
			p.at += 2
			op = "not in"
		}
		if op == "" {
			break
		}
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
	if len(c.ops) == 0 {
		return c.first
	}
	return c
}

func (p *parser) sum() expr {
	e := p.concatenation()
	for p.is(tokOp, "+") || p.is(tokOp, "-") {
		op := p.next().text
		e = &binary{op, e, p.concatenation()}
	}
	return e
}

func (p *parser) concatenation() expr {
	parts := []expr{p.product()}
	for p.op("~") {
		parts = append(parts, p.product())
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return &concatExpr{parts}
}

func (p *parser) product() expr {
	e := p.power()
	for p.is(tokOp, "*") || p.is(tokOp, "/") || p.is(tokOp, "//") || p.is(tokOp, "%") {
		op := p.next().text
		e = &binary{op, e, p.power()}
	}
	return e
}

func (p *parser) power() expr {
	e := p.unary(true)
	for p.op("**") {
		e = &binary{"**", e, p.unary(true)}
	}
	return e
}

func (p *parser) unary(filters bool) expr {
	defer p.deeper()()
	var e expr
	switch {
	case p.op("-"):
		e = &unary{"-", p.unary(false)}
	case p.op("+"):
		e = &unary{"+", p.unary(false)}
	default:
		e = p.primary()
	}
	e = p.postfix(e)
	for filters {
		switch {
		case p.op("|"):
			e = p.filter(e)
		case p.take(tokName, "is"):
			e = p.test(e)
		case p.is(tokOp, "("):
			e = &callExpr{e, p.arguments()}
		default:
			return e
		}
	}
	return e
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &literal{true}
		case "false", "False":
			return &literal{false}
		case "none", "None":
			return &literal{nil}
		}
		if m := p.macro; m != nil {
			m.variadic = m.variadic || t.text == "varargs"
			m.keywords = m.keywords || t.text == "kwargs"
			m.caller = m.caller || t.text == "caller"
		}
		p.names[t.text] = true
		return &nameExpr{t.text}
	case tokString:
		s := t.text
		for p.peek().kind == tokString {
			s += p.next().text
		}
		return &literal{own(s)}
	case tokInt:
		base := 10
		if len(t.text) > 1 && t.text[1] > '9' {
			base = 0 // the text says which
		}
		n, ok := new(big.Int).SetString(t.text, base)
		if !ok || n.BitLen() > maxBits {
			p.fail("the number %q", t.text)
		}
		return &literal{integer(n)}
	case tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil && !isRange(err) {
			p.fail("the number %q", t.text)
		}
		return &literal{f}
	case tokOp:
		switch t.text {
		case "(":
			return p.parenthesis()
		case "[":
			return &listExpr{items: p.items("]")}
		case "{":
			return p.dict()
		}
	}
	p.at--
	p.fail("expected an expression, found %q", t.text)
	return nil
}

func (p *parser) parenthesis() expr {
	if p.op(")") {
		return &listExpr{tuple: true}
	}
	e := p.tuple(true)
	p.want(tokOp, ")")
	return e
}

// items reads expressions with commas between them up to a bracket.
func (p *parser) items(end string) []expr {
	var out []expr
	for !p.op(end) {
		if len(out) > 0 {
			p.want(tokOp, ",")
			if p.op(end) {
				break
			}
		}
		out = append(out, p.expression())
	}
	return out
}

func (p *parser) dict() expr {
	d := &dictExpr{}
	for !p.op("}") {
		if len(d.keys) > 0 {
			p.want(tokOp, ",")
			if p.op("}") {
				break
			}
		}
		d.keys = append(d.keys, p.expression())
		p.want(tokOp, ":")
		d.values = append(d.values, p.expression())
	}
	return d
}

func (p *parser) postfix(e expr) expr {
	for {
		switch {
		case p.op("."):
			switch t := p.next(); t.kind {
			case tokName:
				e = &fieldExpr{e, t.text}
			case tokInt:
				n, err := strconv.ParseInt(t.text, 10, 64)
				if err != nil {
					p.fail("the index %q", t.text)
				}
				e = &attrExpr{e, &literal{n}}
			default:
				p.at--
				p.fail("expected a name behind the dot, found %q", t.text)
			}
		case p.op("["):
			e = p.subscript(e)
		case p.is(tokOp, "("):
			e = &callExpr{e, p.arguments()}
		default:
			return e
		}
	}
}

func (p *parser) subscript(e expr) expr {
	part := func() expr {
		if p.is(tokOp, ":") || p.is(tokOp, "]") {
			return nil
		}
		return p.expression()
	}
	first := part()
	if !p.op(":") {
		if first == nil {
			p.fail("expected an index")
		}
		if p.is(tokOp, ",") {
			p.fail("several indexes")
		}
		p.want(tokOp, "]")
		return &attrExpr{e, first}
	}
	s := &sliceExpr{of: e, from: first, to: part()}
	if p.op(":") {
		s.step = part()
	}
	p.want(tokOp, "]")
	return s
}

func (p *parser) arguments() argList {
	var a argList
	p.want(tokOp, "(")
	for n := 0; !p.op(")"); n++ {
		if n > 0 {
			p.want(tokOp, ",")
			if p.op(")") {
				break
			}
		}
		switch t := p.peek(); {
		case p.op("**"):
			if a.dict != nil {
				p.fail("** twice")
			}
			a.dict = p.expression()
		case p.op("*"):
			if a.spread != nil || a.dict != nil {
				p.fail("* twice or behind **")
			}
			a.spread = p.expression()
		case t.kind == tokName && p.tokens[p.at+1].kind == tokOp && p.tokens[p.at+1].text == "=":
			p.at += 2
			a.names = append(a.names, t.text)
			a.named = append(a.named, p.expression())
		default:
			if len(a.named) > 0 || a.dict != nil || a.spread != nil {
				p.fail("an argument without a name behind one with")
			}
			a.pos = append(a.pos, p.expression())
		}
	}
	return a
}

// filter reads a filter's name and arguments, the bar being taken.
func (p *parser) filter(e expr) *filterExpr {
	f := &filterExpr{of: e, name: p.name()}
	for p.op(".") {
		f.name += "." + p.name()
	}
	if f.call = filterNamed(f.name); f.call == nil {
		if p.soft == 0 {
			p.fail("the filter %q is not known here", f.name)
		}
		f.call = func(*run, Value, arguments) Value { failf("the filter %q is not known here", f.name); return nil }
	}
	if p.is(tokOp, "(") {
		f.args = p.arguments()
	}
	return f
}

// test reads a test's name and arguments, "is" being taken.
func (p *parser) test(e expr) expr {
	t := &testExpr{of: e, not: p.take(tokName, "not"), name: p.name()}
	if t.call = testNamed(t.name); t.call == nil {
		if p.soft == 0 {
			p.fail("the test %q is not known here", t.name)
		}
		t.call = func(*run, Value, arguments) bool { failf("the test %q is not known here", t.name); return false }
	}
	switch next := p.peek(); {
	case p.is(tokOp, "("):
		t.args = p.arguments()
	case next.kind == tokString, next.kind == tokInt, next.kind == tokFloat, p.is(tokOp, "["), p.is(tokOp, "{"),
		next.kind == tokName && next.text != "else" && next.text != "or" && next.text != "and" && next.text != "is" && next.text != "if" && next.text != "not" && next.text != "in":
		t.args.pos = []expr{p.postfix(p.primary())}
	}
	return t
}
