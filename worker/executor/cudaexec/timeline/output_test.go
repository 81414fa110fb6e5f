package timeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs: got\n%s", name, got)
	}
}

// twoLayers is a step of two layers with the library in it, later by some nanoseconds.
func twoLayers(t *testing.T, late uint64) *Step {
	t.Helper()
	s, err := Cut([]Launch{norm(0), product(0, 3), library(0), norm(1), product(1, 3), {"publish", -1, 2, "publish", 1}}, []Module{
		whole(stamp(0, 2, 0, 0, 100, 1100), stamp(1, 2, 1, 20, 100, 1400), stamp(0, 2, 0, 20000, 20500, 21500), stamp(1, 2, 1, 20000, 20500, 21600)),
		whole(stamp(0, 3, 0, 900, 2700, 9000), stamp(1, 3, 1, 900, 2700, 9900), stamp(2, 3, 0, 1200, 2800, 9500),
			stamp(0, 3, 2, 21550, 23700, 30000), stamp(1, 3, 1, 21600, 23700, 30900), stamp(2, 3, 0, 21600, 23700, 30500+late)),
		whole(stamp(0, 1, 3, 30000, 32000+late, 32500+late)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTable(t *testing.T) {
	table := Summarize("decode, 1 row", []*Step{twoLayers(t, 0), twoLayers(t, 500)})
	var b bytes.Buffer
	if err := table.Write(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", b.Bytes())
	text, err := json.MarshalIndent(table, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "table.json", append(text, '\n'))
	all := 0.0
	for _, r := range table.Rows {
		all += r.WorkSum + r.GapSum
	}
	if math.Abs(all-table.StepUS) > 1e-9 {
		t.Errorf("rows add up to %v us, a step takes %v", all, table.StepUS)
	}
	if empty := Summarize("none", nil); len(empty.Rows) != 0 || empty.Write(&b) != nil {
		t.Errorf("a table of no steps is %+v", empty)
	}
}

// Launches whose blocks found no place are told apart, and the text says so.
func TestTableOfAFullBuffer(t *testing.T) {
	full := whole(stamp(0, 2, 0, 0, 10, 30), stamp(1, 2, 0, 0, 10, 30))
	full.Blocks = 4
	s, err := Cut([]Launch{norm(0), norm(1)}, []Module{full})
	if err != nil {
		t.Fatal(err)
	}
	table := Summarize("full", []*Step{s})
	if len(table.Rows) != 2 || table.Rows[1].Op != "norm (lost)" || table.Lost != 2 {
		t.Errorf("table %+v", table)
	}
	var b bytes.Buffer
	if err := table.Write(&b); err != nil || !bytes.Contains(b.Bytes(), []byte("2 blocks found no place")) {
		t.Errorf("%v, %s", err, b.Bytes())
	}
}

func TestTrace(t *testing.T) {
	steps := []Named{{"decode, 1 row: step 1", twoLayers(t, 0)}, {"decode, 1 row: step 2", twoLayers(t, 500)}}
	var b bytes.Buffer
	if err := WriteTrace(&b, steps[:1], 0); err != nil {
		t.Fatal(err)
	}
	golden(t, "trace.json", b.Bytes())
	b.Reset()
	if err := WriteTrace(&b, steps, 7); err != nil {
		t.Fatal(err)
	}
	golden(t, "blocks.json", b.Bytes())
	if blocks := nested(t, b.Bytes()); blocks != 2*7 {
		t.Errorf("%d blocks, want 14", blocks)
	}
	// The second launch of an operation is there before the first one has ended.
	s, err := Cut([]Launch{product(0, 1), product(1, 1)}, []Module{{}, whole(stamp(0, 1, 0, 0, 4, 20), stamp(0, 1, 0, 10, 32, 40))})
	if err != nil {
		t.Fatal(err)
	}
	b.Reset()
	if err := WriteTrace(&b, []Named{{"overlap", s}}, 9); err != nil || nested(t, b.Bytes()) != 2 {
		t.Errorf("%v: %s", err, b.Bytes())
	}
	b.Reset()
	if err := WriteTrace(&b, nil, 7); err != nil || nested(t, b.Bytes()) != 0 {
		t.Errorf("no steps: %v, %s", err, b.Bytes())
	}
	if err := WriteTrace(refuses{}, steps, 7); !errors.Is(err, errRefused) {
		t.Errorf("error %v", err)
	}
}

// nested reads a trace and checks that nothing on one row overlaps, which a viewer would not show. It returns the number of blocks.
func nested(t *testing.T, text []byte) (blocks int) {
	t.Helper()
	var read struct{ TraceEvents []event }
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	until := map[[2]int]float64{}
	for _, e := range read.TraceEvents {
		if e.Phase != "X" {
			continue
		}
		row := [2]int{e.Process, e.Thread}
		if e.At < until[row]-1e-9 {
			t.Errorf("%s at %v begins before the one before it on row %v ends, at %v", e.Name, e.At, row, until[row])
		}
		until[row] = e.At + *e.Duration
		blocks += e.Process % 2
	}
	return blocks
}

var errRefused = errors.New("refused")

// refuses takes nothing.
type refuses struct{}

func (refuses) Write([]byte) (int, error) { return 0, errRefused }
