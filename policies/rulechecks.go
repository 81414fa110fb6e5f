package policies

import (
	"errors"
	"fmt"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
)

// Phases of an answer, as rules read them.
const (
	phaseThink  = "think"
	phaseAnswer = "answer"
)

// phases refuses a comparison of the phase with a text that it never is: such a one
// would decide the same for every token, without a word.
func (w *ruleWalk) phases(feature, other ast.Node) error {
	name, isName := feature.(*ast.IdentifierNode)
	text, isText := other.(*ast.StringNode)
	if !isName || !isText || name.Value != "phase" || text.Value == phaseThink || text.Value == phaseAnswer {
		return nil
	}
	return w.fail(text.Location().From, "phase is %q or %q, never %q", phaseThink, phaseAnswer, text.Value)
}

// members refuses values of a list that the left side never is.
func (w *ruleWalk) members(left ast.Node, list []ast.Node) error {
	want := texts(left)
	for _, n := range list {
		if err := w.phases(left, n); err != nil {
			return err
		}
		if have := texts(n); have != want {
			return w.fail(n.Location().From, "%s in a list that %s is looked for in", shape(have), shape(want))
		}
	}
	return nil
}

// shape names a kind of value for a message.
func shape(text bool) string {
	if text {
		return "a text"
	}
	return "a number"
}

// texts says that a node's value is a text.
func texts(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.StringNode:
		return true
	case *ast.IdentifierNode:
		return n.Value == "phase" || n.Value == "text"
	case *ast.ConditionalNode:
		return texts(n.Exp1)
	case *ast.BinaryNode:
		return n.Operator == "+" && texts(n.Left)
	}
	return false
}

// division is the name of the function that stands for the operator; no expression
// can write it.
const division = "/"

// errZero ends a rule that divides by zero: what it then compares is no number, or
// larger than all, and says nothing about the token.
var errZero = errors.New("division by zero")

// checkedDivision makes a division by zero fail, as that of whole numbers by % does.
func checkedDivision() []expr.Option {
	return []expr.Option{
		expr.Function(division, divide, new(func(float64, float64) float64), new(func(int, int) float64),
			new(func(int, float64) float64), new(func(float64, int) float64)),
		expr.Patch(divisions{}),
	}
}

func divide(params ...any) (any, error) {
	var of [2]float64
	for i, p := range params {
		switch p := p.(type) {
		case int:
			of[i] = float64(p)
		case float64:
			of[i] = p
		default:
			return nil, fmt.Errorf("division of %T", p)
		}
	}
	if of[1] == 0 {
		return nil, errZero
	}
	return of[0] / of[1], nil
}

// divisions puts the function in the operator's place.
type divisions struct{}

// Visit implements ast.Visitor.
func (divisions) Visit(n *ast.Node) {
	if b, ok := (*n).(*ast.BinaryNode); ok && b.Operator == "/" {
		ast.Patch(n, &ast.CallNode{Callee: &ast.IdentifierNode{Value: division}, Arguments: []ast.Node{b.Left, b.Right}})
	}
}
