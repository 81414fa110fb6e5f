package policies

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"

	"github.com/tokenrouter/tokenrouter/internal/near"
)

// Bounds of a rule.
const (
	maxRuleBytes = 4096
	maxRuleNodes = 512
)

// ErrRule says that a rule of a deployment cannot be used. The text names setting,
// line and column.
var ErrRule = errors.New("bad rule")

// rule is a compiled expression.
type rule struct {
	program *vm.Program
	// needs are the features to compute in the step, reads the names that it uses.
	needs Feature
	reads map[string]bool
	// names are the models by index, for rules that return one.
	names []string
	text  *Text
}

// ruleScope is where a rule is used.
type ruleScope struct {
	models int
	names  []string
	net    string
	text   *Text
	// other says that it judges the tokens of the other models.
	other bool
}

// feature is a name that expressions know.
type feature struct {
	name  string
	needs Feature
}

func features() []feature {
	return []feature{
		{"entropy", FeatureEntropy}, {"entropy_nats", FeatureEntropy}, {"margin", 0}, {"top1", FeatureTopK},
		{"score", FeatureScore}, {"position", 0}, {"prompt_len", 0}, {"since_hop", 0}, {"phase", 0},
		{"large_share", 0}, {"token", 0}, {"text", 0},
	}
}

// missing says why a feature is not there, and what to do; empty if it is.
func (s *ruleScope) missing(name string) string {
	switch {
	case name == "score" && s.other:
		return "it is of the entry model's candidates; a return_rule cannot use it"
	case name == "score" && s.net == "":
		return "it needs a router network; name one with router"
	case name == "phase" && s.text != nil && !s.text.thinks():
		return "the models' vocabulary has no token </think>"
	}
	return ""
}

// compileRule checks an expression and compiles it. Expressions know the features,
// numbers, texts in quotes, comparisons, + - * / % **, and or not && || !, in with
// a list, abs, min, max, floor, ceil and round, and A ? B : C. Their value is a
// boolean, or in every case the name of a model.
func compileRule(setting, text string, scope ruleScope) (*rule, error) {
	fail := func(from int, format string, args ...any) error {
		line, column := place(text, from)
		return fmt.Errorf("%w: %s: line %d, column %d: %s", ErrRule, setting, line, column, fmt.Sprintf(format, args...))
	}
	switch {
	case strings.TrimSpace(text) == "":
		return nil, fmt.Errorf("%w: %s: is empty", ErrRule, setting)
	case len(text) > maxRuleBytes:
		return nil, fmt.Errorf("%w: %s: has %d bytes, the limit is %d", ErrRule, setting, len(text), maxRuleBytes)
	case !utf8.ValidString(text):
		return nil, fmt.Errorf("%w: %s: is not UTF-8", ErrRule, setting)
	}
	options := ruleOptions()
	config := conf.New(&ruleRow{})
	for _, o := range options {
		o(config)
	}
	config.Check()
	tree, err := parser.ParseWithConfig(text, config)
	if err != nil {
		return nil, ruleError(fail, err)
	}
	w := ruleWalk{scope: &scope, fail: fail, reads: map[string]bool{}, plain: -1}
	if err := w.value(tree.Node, true); err != nil {
		return nil, err
	}
	if w.named && w.plain >= 0 {
		return nil, fail(w.plain, "a rule that returns a model's name must do so in every case")
	}
	result := expr.AsBool()
	if w.named {
		result = expr.AsKind(reflect.String)
	}
	options = append(options, expr.Env(&ruleRow{}), result)
	// Twice, so that errors of types are about what was written, not about its divisions' form.
	if _, err = expr.Compile(text, options...); err != nil {
		return nil, ruleError(fail, err)
	}
	program, err := expr.Compile(text, append(options, checkedDivision()...)...)
	if err != nil {
		return nil, ruleError(fail, err)
	}
	u := &rule{program: program, reads: w.reads, names: scope.names, text: scope.text}
	for _, f := range features() {
		if w.reads[f.name] {
			u.needs |= f.needs
		}
	}
	return u, nil
}

func ruleOptions() []expr.Option {
	options := []expr.Option{expr.DisableAllBuiltins(), expr.MaxNodes(maxRuleNodes)}
	for _, name := range ruleFunctions() {
		options = append(options, expr.EnableBuiltin(name))
	}
	return options
}

func ruleFunctions() []string { return []string{"abs", "min", "max", "floor", "ceil", "round"} }

// ruleError puts an error of the expression library into our form.
func ruleError(fail func(int, string, ...any) error, err error) error {
	var at *file.Error
	if errors.As(err, &at) {
		return fail(at.From, "%s", at.Message)
	}
	return fail(0, "%v", err)
}

// place returns line and column, from 1, of the n-th character of a text.
func place(text string, n int) (line, column int) {
	line, column = 1, 1
	for _, r := range text {
		if n--; n < 0 {
			break
		}
		if column++; r == '\n' {
			line, column = line+1, 1
		}
	}
	return line, column
}

// ruleWalk lets through what expressions may hold.
type ruleWalk struct {
	scope *ruleScope
	fail  func(from int, format string, args ...any) error
	reads map[string]bool
	// named says that the value is a model's name.
	named bool
	// plain is where a value begins that is no name, -1 if there is none.
	plain int
}

// ruleOperators are the operators between two values.
func ruleOperators() []string {
	return []string{"==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "**", "^", "&&", "||", "and", "or", "in"}
}

// value checks a node; result says that its value is the rule's.
func (w *ruleWalk) value(n ast.Node, result bool) error {
	switch n.(type) {
	case *ast.StringNode, *ast.ConditionalNode:
	default:
		if result {
			w.plain = n.Location().From
		}
	}
	switch n := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return nil
	case *ast.StringNode:
		if result {
			return w.model(n)
		}
		return nil
	case *ast.IdentifierNode:
		return w.feature(n)
	case *ast.UnaryNode:
		return w.value(n.Node, false)
	case *ast.BinaryNode:
		if !slices.Contains(ruleOperators(), n.Operator) {
			return w.fail(n.Location().From, "the operator %q is not known in rules", n.Operator)
		}
		return w.binary(n)
	case *ast.ConditionalNode:
		if err := w.all(n.Cond); err != nil {
			return err
		}
		if err := w.value(n.Exp1, result); err != nil {
			return err
		}
		return w.value(n.Exp2, result)
	case *ast.BuiltinNode:
		return w.call(n.Location().From, n.Name, n.Arguments)
	case *ast.CallNode:
		name, _ := n.Callee.(*ast.IdentifierNode)
		if name == nil {
			break
		}
		return w.call(n.Location().From, name.Value, n.Arguments)
	}
	return w.fail(n.Location().From, "this kind of expression is not known in rules")
}

// binary checks both sides of an operator that is known.
func (w *ruleWalk) binary(n *ast.BinaryNode) error {
	list, isList := n.Right.(*ast.ArrayNode)
	switch {
	case n.Operator == "in" && isList:
		if err := w.all(append([]ast.Node{n.Left}, list.Nodes...)...); err != nil {
			return err
		}
		return w.members(n.Left, list.Nodes)
	case n.Operator == "==" || n.Operator == "!=":
		if err := cmp.Or(w.phases(n.Left, n.Right), w.phases(n.Right, n.Left)); err != nil {
			return err
		}
	}
	return w.all(n.Left, n.Right)
}

func (w *ruleWalk) all(nodes ...ast.Node) error {
	for _, n := range nodes {
		if err := w.value(n, false); err != nil {
			return err
		}
	}
	return nil
}

func (w *ruleWalk) call(from int, name string, args []ast.Node) error {
	if !slices.Contains(ruleFunctions(), name) {
		return w.fail(from, "the function %q is not known; functions: %s", name, strings.Join(ruleFunctions(), ", "))
	}
	return w.all(args...)
}

// feature notes a feature that the rule reads.
func (w *ruleWalk) feature(n *ast.IdentifierNode) error {
	var names []string
	for _, f := range features() {
		names = append(names, f.name)
	}
	if !slices.Contains(names, n.Value) {
		hint := ""
		if meant := near.Word(n.Value, names); meant != "" {
			hint = fmt.Sprintf("; did you mean %q?", meant)
		}
		return w.fail(n.Location().From, "the feature %q is not known%s Features: %s", n.Value, cmp.Or(hint, "."), strings.Join(names, ", "))
	}
	if why := w.scope.missing(n.Value); why != "" {
		return w.fail(n.Location().From, "the feature %q is not available: %s", n.Value, why)
	}
	w.reads[n.Value] = true
	return nil
}

// model checks the name of a model that the rule returns.
func (w *ruleWalk) model(n *ast.StringNode) error {
	w.named = true
	if len(w.scope.names) > 0 && !slices.Contains(w.scope.names, n.Value) {
		return w.fail(n.Location().From, "%q is no model of the deployment; its models: %s", n.Value, strings.Join(w.scope.names, ", "))
	}
	return nil
}
