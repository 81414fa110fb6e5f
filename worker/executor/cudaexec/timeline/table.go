package timeline

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Row is what the launches of one operation took. Times are microseconds; sums are of one step, the mean of all.
type Row struct {
	Op string `json:"operation"`
	// After is the operation that comes before it most often, and so the border that the gap is at; empty for the step's begin.
	After string `json:"after"`
	// Library operations leave no stamps: Work is all that lies between their neighbours, with both borders.
	Library bool `json:"library"`
	// Launches is of one step, Blocks and SMs of the largest launch.
	Launches float64 `json:"launches"`
	Blocks   int     `json:"blocks"`
	SMs      int     `json:"sms"`
	// Work is from the end of a launch's wait to its end, Gap from the end of the launch before to the end of the wait, and Waited
	// how long the launch was there before, which overlaps with the gap and with others' work.
	// Gaps is how many of a step's gaps can be seen: one after the library is in the library's work.
	Gaps         float64 `json:"gaps"`
	WorkMedian   float64 `json:"work_us"`
	WorkSum      float64 `json:"work_sum_us"`
	GapMedian    float64 `json:"gap_us"`
	GapSum       float64 `json:"gap_sum_us"`
	WaitedMedian float64 `json:"waited_us"`
	// GapMost is the largest gap of all, of layer GapLayer, -1 for none.
	GapMost  float64 `json:"gap_most_us"`
	GapLayer int     `json:"gap_most_layer"`
}

// Table is where the time of some equal steps went. The sum of WorkSum and GapSum of all rows is a step's time.
type Table struct {
	Title string `json:"title"`
	Steps int    `json:"steps"`
	// StepUS is the mean time of a step, from the first block's begin to the last one's end; GapUS is the part between operations,
	// LibraryUS that of operations whose borders cannot be seen.
	StepUS    float64 `json:"step_us"`
	GapUS     float64 `json:"gap_us"`
	LibraryUS float64 `json:"library_us"`
	// TickNS is how finely the device's clock advances; Lost blocks of all steps found no place.
	TickNS int   `json:"tick_ns"`
	Lost   int   `json:"lost_blocks"`
	Rows   []Row `json:"rows"`
}

// tally collects what becomes a row.
type tally struct {
	row               Row
	work, gap, waited []time.Duration
	after             map[string]int
}

// name is an operation as tables and traces have it.
func (s *Span) name() string {
	switch {
	case s.Module == Library:
		return s.Op + " (library)"
	case s.Seen == 0:
		return s.Op + " (lost)"
	}
	return s.Op
}

// Summarize adds the launches of steps up by operation, in the order in which they first come.
func Summarize(title string, steps []*Step) Table {
	t := Table{Title: title, Steps: len(steps)}
	if len(steps) == 0 {
		return t
	}
	var order []*tally
	of := map[string]*tally{}
	for _, s := range steps {
		t.StepUS += us(s.Length) / float64(len(steps))
		t.Lost += s.Lost
		if tick := int(s.Tick); tick > 0 && (t.TickNS == 0 || tick < t.TickNS) {
			t.TickNS = tick
		}
		before := ""
		for i := range s.Spans {
			sp := &s.Spans[i]
			name := sp.name()
			a := of[name]
			if a == nil {
				a = &tally{row: Row{Op: name, Library: sp.Seen == 0, GapLayer: -1}, after: map[string]int{}}
				of[name], order = a, append(order, a)
			}
			a.add(sp, before)
			before = name
		}
	}
	for _, a := range order {
		r := a.finish(len(steps))
		t.GapUS += r.GapSum
		if r.Library {
			t.LibraryUS += r.WorkSum
		}
		t.Rows = append(t.Rows, r)
	}
	return t
}

func (a *tally) add(s *Span, before string) {
	a.row.Blocks, a.row.SMs = max(a.row.Blocks, s.Blocks), max(a.row.SMs, s.SMs)
	a.work, a.waited = append(a.work, s.Work), append(a.waited, s.Waited())
	a.after[before]++
	if s.Hidden || s.Seen == 0 {
		return
	}
	a.gap = append(a.gap, s.Gap)
	if gap := us(s.Gap); gap > a.row.GapMost {
		a.row.GapMost, a.row.GapLayer = gap, s.Layer
	}
}

func (a *tally) finish(steps int) Row {
	r := a.row
	r.Launches = float64(len(a.work)) / float64(steps)
	r.WorkMedian, r.WorkSum = median(a.work), sum(a.work)/float64(steps)
	r.Gaps, r.GapMedian, r.GapSum = float64(len(a.gap))/float64(steps), median(a.gap), sum(a.gap)/float64(steps)
	r.WaitedMedian = median(a.waited)
	most := 0
	for name, n := range a.after {
		if n > most || n == most && name < r.After {
			r.After, most = name, n
		}
	}
	return r
}

func us(d time.Duration) float64 { return float64(d) / 1e3 }

func sum(list []time.Duration) float64 {
	var all time.Duration
	for _, d := range list {
		all += d
	}
	return us(all)
}

func median(list []time.Duration) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return us(list[len(list)/2])
}

// Write prints the table.
func (t *Table) Write(w io.Writer) error {
	var b strings.Builder
	share := func(part float64) float64 {
		if t.StepUS == 0 {
			return 0
		}
		return 100 * part / t.StepUS
	}
	fmt.Fprintf(&b, "timeline of %s: %d steps of %.3f ms on the device, %.1f %% between operations", t.Title, t.Steps, t.StepUS/1e3, share(t.GapUS))
	if t.LibraryUS > 0 {
		fmt.Fprintf(&b, ", %.1f %% in the library with its borders", share(t.LibraryUS))
	}
	fmt.Fprintf(&b, "; its clock advances by %d ns\n", t.TickNS)
	if t.Lost > 0 {
		fmt.Fprintf(&b, "%d blocks found no place: some launches are cut short or lost\n", t.Lost)
	}
	fmt.Fprintf(&b, "%-32s %8s %8s %4s %9s %10s %6s %9s %10s %6s %9s %-18s %s\n", "operation", "launches", "blocks", "SMs", "work us", "sum us", "share",
		"gap us", "sum us", "share", "waited us", "largest gap", "after")
	total := Row{Op: "all"}
	for _, r := range t.Rows {
		gap, waited, most := fmt.Sprintf("%.2f", r.GapMedian), fmt.Sprintf("%.2f", r.WaitedMedian), "-"
		if r.GapMost > 0 {
			if most = fmt.Sprintf("%.2f", r.GapMost); r.GapLayer >= 0 {
				most += fmt.Sprintf(" in layer %d", r.GapLayer)
			}
		}
		if r.Gaps == 0 {
			gap = "-"
		}
		if r.Library {
			waited = "-"
		}
		fmt.Fprintf(&b, "%-32s %8g %8d %4d %9.2f %10.1f %5.1f%% %9s %10.1f %5.1f%% %9s %-18s %s\n", r.Op, r.Launches, r.Blocks, r.SMs, r.WorkMedian, r.WorkSum,
			share(r.WorkSum), gap, r.GapSum, share(r.GapSum), waited, most, cmp.Or(r.After, "-"))
		total.Launches += r.Launches
		total.WorkSum += r.WorkSum
		total.GapSum += r.GapSum
	}
	fmt.Fprintf(&b, "%-32s %8g %8s %4s %9s %10.1f %5.1f%% %9s %10.1f %5.1f%%\n", total.Op, total.Launches, "", "", "", total.WorkSum, share(total.WorkSum), "",
		total.GapSum, share(total.GapSum))
	_, err := io.WriteString(w, b.String())
	return err
}
