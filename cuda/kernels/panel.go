package kernels

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// PanelTiles is the most tiles that Panel cuts into parts, PanelRoom the floats that the sums of all parts take at most: of maxParts with
// 64 tokens each.
const (
	PanelTiles = maxParts
	PanelRoom  = maxParts * panelRows * 64
	maxParts   = 1 << 10
)

// HasPanel reports whether this device has Panel.
func (s *Set) HasPanel() bool { return s.panel[0][0] != nil }

// Panel multiplies many tokens on the tensor cores of Hopper. Its bits are those of Slim in a form.
func (s *Set) Panel(st *driver.Stream, p *MatmulParams, tokens int, form SlimForm) error {
	return s.broad(st, p, tokens, form, 0)
}

// PanelGate is Panel for gate over up, which ends in silu(gate) * up. Y is bf16.
func (s *Set) PanelGate(st *driver.Stream, p *MatmulParams, tokens int, form SlimForm) error {
	return s.broad(st, p, tokens, form, 1)
}

func (s *Set) broad(st *driver.Stream, p *MatmulParams, tokens int, form SlimForm, gate int) error {
	if err := checkMatmul(p, p.N>>gate); err != nil {
		return err
	}
	if !s.HasPanel() {
		return fmt.Errorf("panel: %w: this device has none", ErrDims)
	}
	m, passes := *p, slimShapes[form][0].warps
	m.passes = int32(passes)
	rows, parts := ceilDiv(int(p.N), panelRows), min(passes, ceilDiv(int(p.K), panelRun))
	i := s.panelShape(p, rows, parts, tokens)
	shape := panelShapes[i]
	if !shape.parts {
		parts = 1
	}
	return runShared(s, st, s.panel[gate][i], rows*ceilDiv(tokens, shape.tokens)*parts, 1, 256, shape.shared(), &m)
}

// panelShape chooses parts where each is long enough for what its sums cost, and where all of them fit the device at once: they end
// together then, and none begins when most have ended; or where whole tiles would leave most of the device idle. Short matrices have
// too few rows to fill it: more blocks of fewer tokens read their weights again, from the cache.
func (s *Set) panelShape(p *MatmulParams, rows, parts, tokens int) int {
	short, idle := int(p.N)*int(p.K) <= panelShort, -1
	for i, shape := range panelShapes {
		if shape.tokens < tokens && !(short && shape.parts && tokens <= 2*shape.tokens) {
			continue
		}
		if !shape.parts {
			if idle >= 0 {
				return idle
			}
			return i
		}
		blocks := rows * parts * ceilDiv(tokens, shape.tokens)
		switch {
		case p.Partial == 0 || blocks*shape.tokens > maxParts*64 || int(p.K) < panelDeep*panelRun*parts:
		case blocks <= shape.blocks*s.multiprocessors:
			return i
		case 2*rows <= s.multiprocessors:
			idle = i
		}
	}
	return len(panelShapes) - 1
}

// panelShort is the elements of a matrix that the cache gives again at once, panelDeep the runs that make a part worth its while.
const (
	panelShort = 8 << 20
	panelDeep  = 4
)
