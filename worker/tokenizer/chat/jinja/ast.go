package jinja

// expr is an expression.
type expr interface{ eval(*frame) Value }

// stmt is a statement.
type stmt interface{ exec(*frame) flow }

// flow is how a statement ends.
type flow uint8

const (
	flowOn flow = iota
	flowBreak
	flowContinue
)

// target is what an assignment or a loop binds: a name, a field of a namespace, or
// several of them.
type target struct {
	name, field string
	parts       []target
}

type (
	literal   struct{ v Value }
	nameExpr  struct{ name string }
	attrExpr  struct{ of, name expr }
	fieldExpr struct {
		of   expr
		name string
	}
	sliceExpr struct{ of, from, to, step expr } // parts may be nil
	listExpr  struct {
		items []expr
		tuple bool
	}
	dictExpr struct{ keys, values []expr }
	condExpr struct{ test, then, other expr } // other may be nil
	notExpr  struct{ of expr }
	logic    struct {
		or          bool
		left, right expr
	}
	binary struct {
		op          string
		left, right expr
	}
	unary struct {
		op string
		of expr
	}
	compare struct {
		first expr
		ops   []string
		rest  []expr
	}
	concatExpr struct{ parts []expr }
	callExpr   struct {
		of   expr
		args argList
	}
	filterExpr struct {
		of   expr // nil in a filter block
		name string
		call filter
		args argList
	}
	testExpr struct {
		of   expr
		name string
		call tester
		args argList
		not  bool
	}
)

// argList are the arguments of a call.
type argList struct {
	pos          []expr
	names        []string
	named        []expr
	spread, dict expr // *args and **kwargs; may be nil
}

type (
	dataStmt struct{ text string }
	outStmt  struct{ of expr }
	ifStmt   struct {
		tests  []expr
		bodies [][]stmt
		other  []stmt
	}
	forStmt struct {
		into        target
		over        expr
		test        expr // may be nil
		body, other []stmt
		recursive   bool
	}
	setStmt struct {
		into target
		v    expr // nil for a block
		body []stmt
		// filters are applied to the block's text.
		filters []*filterExpr
	}
	macroStmt struct{ m *macroDef }
	callStmt  struct {
		call *callExpr
		m    *macroDef
	}
	filterStmt struct {
		filters []*filterExpr
		body    []stmt
	}
	withStmt struct {
		into []target
		v    []expr
		body []stmt
	}
	blockStmt struct{ body []stmt } // a scope of its own, without more meaning
	flowStmt  struct{ f flow }
)

// macroDef is what a macro is made of. The last defaults belong to the last names.
type macroDef struct {
	name     string
	names    []string
	defaults []expr
	body     []stmt
	// variadic and keywords say that the body names varargs and kwargs.
	variadic, keywords, caller bool
}
