package listing

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// Kind is a kind of things that can be listed.
type Kind string

const (
	Nodes       Kind = "nodes"
	Workers     Kind = "workers"
	Gateways    Kind = "gateways"
	Deployments Kind = "deployments"
	Placements  Kind = "placements"
	Thresholds  Kind = "thresholds"
	Keys        Kind = "keys"
	Tokens      Kind = "tokens"
	Operators   Kind = "operators"
	GPUs        Kind = "gpus"
)

// Kinds lists the kinds.
func Kinds() []Kind {
	return []Kind{Nodes, Workers, Gateways, Deployments, Placements, Thresholds, Keys, Tokens, Operators, GPUs}
}

var (
	// ErrKind says that there is no such kind of things.
	ErrKind = errors.New("there is no such kind")
	// ErrNotFound says that the cluster has nothing of that name.
	ErrNotFound = errors.New("does not exist")
)

// KindOf reads a kind, in the singular or the plural.
func KindOf(text string) (Kind, error) {
	for _, k := range Kinds() {
		if text == string(k) || text+"s" == string(k) {
			return k, nil
		}
	}
	return "", fmt.Errorf("%q: %w; there are %v", text, ErrKind, Kinds())
}

// Facts is what is known of a cluster at a time.
type Facts struct {
	State *state.State
	// Loads are what the leader last heard of the nodes; nil if there is no leader.
	Loads map[string]cluster.NodeLoad
	Now   time.Time
}

// Row is one thing.
type Row struct {
	Name string
	// Object is for JSON; its type is one of this package's.
	Object any
	// Lasting is its cells but for those that change all the time, such as ages, to see
	// whether it has changed.
	Lasting string

	cells []string
}

// Table is things of one kind in the order of their names.
type Table struct {
	Kind Kind
	Rows []Row

	titles []title
}

type title struct {
	text string
	wide bool
}

// Objects are the rows' objects, never nil.
func (t *Table) Objects() []any {
	out := make([]any, len(t.Rows))
	for i := range t.Rows {
		out[i] = t.Rows[i].Object
	}
	return out
}

// Write prints the rows in columns below their titles; wide has all columns.
func (t *Table) Write(w io.Writer, wide bool) error {
	if len(t.Rows) == 0 {
		kind := string(t.Kind)
		if t.Kind == GPUs {
			kind = "GPUs"
		}
		_, err := fmt.Fprintf(w, "There are no %s.\n", kind)
		return err
	}
	head := make([]string, len(t.titles))
	for i := range head {
		head[i] = t.titles[i].text
	}
	return t.write(w, wide, append([][]string{head}, t.all()...))
}

// WriteRows prints rows without titles.
func (t *Table) WriteRows(w io.Writer, wide bool) error { return t.write(w, wide, t.all()) }

func (t *Table) all() [][]string {
	out := make([][]string, len(t.Rows))
	for i := range t.Rows {
		out[i] = t.Rows[i].cells
	}
	return out
}

func (t *Table) write(w io.Writer, wide bool, rows [][]string) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cells := range rows {
		var line []string
		for i, cell := range cells {
			if !t.titles[i].wide || wide {
				line = append(line, printable(cell))
			}
		}
		// No blanks at the end of a line.
		for len(line) > 0 && line[len(line)-1] == "" {
			line = line[:len(line)-1]
		}
		fmt.Fprintln(out, strings.Join(line, "\t"))
	}
	return out.Flush()
}

// printable is a cell of one line and one column: names that people gave, and what nodes
// tell, do not steer the terminal.
func printable(cell string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, cell)
}

// column is how one fact of a thing is printed.
type column[T any] struct {
	title string
	// wide columns are shown if asked for; live ones change all the time.
	wide, live bool
	text       func(*T) string
}

// table puts things into columns. The first column is the name.
func table[T any](kind Kind, list []T, columns []column[T]) Table {
	t := Table{Kind: kind}
	for _, c := range columns {
		t.titles = append(t.titles, title{c.title, c.wide})
	}
	for i := range list {
		row := Row{Object: list[i]}
		var lasting []string
		for _, c := range columns {
			cell := c.text(&list[i])
			row.cells = append(row.cells, cell)
			if !c.live {
				lasting = append(lasting, cell)
			}
		}
		row.Name, row.Lasting = row.cells[0], strings.Join(lasting, "\t")
		t.Rows = append(t.Rows, row)
	}
	return t
}

// List is the things of a kind; with a name, that one alone, or ErrNotFound.
func (f *Facts) List(kind Kind, name string) (Table, error) {
	var t Table
	switch kind {
	case Nodes:
		t = f.nodes(kind, "")
	case Workers:
		t = f.nodes(kind, cluster.Worker)
	case Gateways:
		t = f.nodes(kind, cluster.Gateway)
	case Deployments:
		t = f.deployments()
	case Placements:
		t = f.placements()
	case Thresholds:
		t = f.thresholds()
	case Keys:
		t = f.keys()
	case Tokens:
		t = f.tokens()
	case Operators:
		t = f.operators()
	case GPUs:
		t = f.gpus()
	default:
		return t, fmt.Errorf("%q: %w; there are %v", kind, ErrKind, Kinds())
	}
	if name == "" {
		return t, nil
	}
	row, err := t.row(name)
	t.Rows = []Row{row}
	return t, err
}

// Find is one thing of a kind, or ErrNotFound.
func (f *Facts) Find(kind Kind, name string) (Row, error) {
	t, err := f.List(kind, "")
	if err != nil {
		return Row{}, err
	}
	return t.row(name)
}

func (t *Table) row(name string) (Row, error) {
	for _, row := range t.Rows {
		if row.Name == name {
			return row, nil
		}
	}
	return Row{}, fmt.Errorf("%s %.128q %w", strings.TrimSuffix(string(t.Kind), "s"), name, ErrNotFound)
}
