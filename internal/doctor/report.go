package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/tokenrouter/tokenrouter/cuda/inventory"
)

// Status is the outcome of a check.
type Status string

const (
	// OK means that nothing has to be done.
	OK Status = "ok"
	// Warn means that it works, with a limit that Fix removes.
	Warn Status = "warn"
	// Fail means that what is there cannot be used as it is.
	Fail Status = "fail"
)

// Check is one thing looked at.
type Check struct {
	// Name is a short fixed identifier, such as "nvrtc" or "gpu 0".
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Detail says what was found.
	Detail string `json:"detail"`
	// Fix says what to do; it is set when Status is not OK.
	Fix string `json:"fix,omitempty"`
}

// Report is the outcome of all checks, in a fixed order.
type Report struct {
	Checks []Check         `json:"checks"`
	GPUs   []inventory.GPU `json:"gpus"`
	// Backend is what a worker started now would use: "cuda" or "cpu".
	Backend string `json:"backend"`
}

// Healthy reports whether no check failed.
func (r Report) Healthy() bool {
	for _, c := range r.Checks {
		if c.Status == Fail {
			return false
		}
	}
	return true
}

// Find returns the check with a name.
func (r Report) Find(name string) (Check, bool) {
	for _, c := range r.Checks {
		if c.Name == name {
			return c, true
		}
	}
	return Check{}, false
}

// WriteText writes the report for people: one line a check, and below it what to do.
func (r Report) WriteText(w io.Writer) error {
	width := 0
	for _, c := range r.Checks {
		width = max(width, len(c.Name))
	}
	var b strings.Builder
	for _, c := range r.Checks {
		label := string(c.Status)
		if c.Status == Fail {
			label = "FAIL"
		}
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", label, width, c.Name, oneLine(c.Detail))
		if c.Fix != "" {
			fmt.Fprintf(&b, "%-4s  %-*s  → %s\n", "", width, "", oneLine(c.Fix))
		}
	}
	verdict := "healthy"
	if !r.Healthy() {
		verdict = "not healthy"
	}
	fmt.Fprintf(&b, "\n%s; backend: %s\n", verdict, r.Backend)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the report for programs.
func (r Report) WriteJSON(w io.Writer) error {
	if r.GPUs == nil {
		r.GPUs = []inventory.GPU{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// oneLine keeps a message of the system from breaking the table.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
