package engine

import (
	"fmt"
	"strings"
)

// Plan is where the memory of all models goes. All sizes are bytes.
type Plan struct{ Devices []DevicePlan }

// DevicePlan is one device's part.
type DevicePlan struct {
	// Device is "CPU", or a GPU's number and product.
	Device string
	// Memory is the device's, Free what was free at the start, Budget what the
	// models may take. They are 0 for a CPU.
	Memory, Free, Budget int64
	// Reproducible says that a token's bits depend on its own sequence alone.
	Reproducible bool
	Models       []ModelPlan
}

// ModelPlan is one model's part.
type ModelPlan struct {
	Model    string
	Replicas int
	// Weights, Activations and KV are of each replica. On a CPU pages of KV take
	// memory once they are used, and activations are not counted.
	Weights, Activations, KV int64
	// Tokens is the number of token slots of each replica's pool, of TokenBytes each.
	Tokens     int
	TokenBytes int64
}

// bytes is what all replicas take.
func (m *ModelPlan) bytes() int64 { return int64(m.Replicas) * (m.Weights + m.Activations + m.KV) }

// Headroom is what the models leave of the budget.
func (d *DevicePlan) Headroom() int64 {
	left := d.Budget
	for i := range d.Models {
		left -= d.Models[i].bytes()
	}
	return left
}

// arithmetic says for people what answers depend on.
func (d *DevicePlan) arithmetic() string {
	switch {
	case !d.Reproducible:
		return "fastest arithmetic (last bits depend on the batch)"
	case d.Memory == 0:
		return "reproducible arithmetic, as always here"
	}
	return "reproducible arithmetic"
}

// String is the plan as a table for people.
func (p *Plan) String() string {
	var b strings.Builder
	for i := range p.Devices {
		d := &p.Devices[i]
		fmt.Fprintf(&b, "%s", d.Device)
		if d.Memory > 0 {
			fmt.Fprintf(&b, ", %s of memory, %s free, budget %s", size(d.Memory), size(d.Free), size(d.Budget))
		}
		fmt.Fprintf(&b, ", %s", d.arithmetic())
		width := len("model")
		for _, m := range d.Models {
			width = max(width, len(m.Model))
		}
		fmt.Fprintf(&b, "\n  %-*s  %11s  %11s  %11s  %11s  %s\n", width, "model", "weights", "activations", "kv", "kv tokens", "KiB a token")
		for _, m := range d.Models {
			fmt.Fprintf(&b, "  %-*s  %11s  %11s  %11s  %11d  %.1f", width, m.Model, size(m.Weights), size(m.Activations), size(m.KV), m.Tokens,
				float64(m.TokenBytes)/1024)
			if m.Replicas > 1 {
				fmt.Fprintf(&b, "  (each of %d replicas)", m.Replicas)
			}
			b.WriteByte('\n')
		}
		if d.Memory > 0 {
			fmt.Fprintf(&b, "  headroom %s\n", size(d.Headroom()))
		}
	}
	return b.String()
}

// size is a size for people.
func size(n int64) string {
	if n > -1<<30 && n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}
