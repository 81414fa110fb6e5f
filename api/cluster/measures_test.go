package cluster

import (
	"encoding/json"
	"errors"
	"math"
	"testing"
)

// good is a message without fault.
func good() Measures {
	return Measures{Node: "w1", List: []Measure{{
		Deployment: "tiny", Replica: "tiny-s-w1", Routed: 5000, To: []float64{0.8, 0.2}, Kept: []float64{1, 0},
		Steps: []StepTime{{N: 10, MS: 6, Alone: 6}, {}, {N: 7, MS: 7.5, Busy: 8}}, Slowdown: 1, Prefill: 0.3, Hop: 0.1, Live: 4,
	}}}
}

func TestMeasuresCheck(t *testing.T) {
	m := good()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	idle := good()
	idle.List[0].Routed, idle.List[0].To = 0, []float64{0, 0}
	if err := idle.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Measure){
		"long name":     func(m *Measure) { m.Replica = string(make([]byte, MaxID+1)) },
		"one model":     func(m *Measure) { m.To, m.Kept = []float64{1}, []float64{1} },
		"many models":   func(m *Measure) { m.To, m.Kept = make([]float64, 9), make([]float64, 9) },
		"kept":          func(m *Measure) { m.Kept = nil },
		"model":         func(m *Measure) { m.Model = 2 },
		"many steps":    func(m *Measure) { m.Steps = make([]StepTime, MaxMeasuredSteps+1) },
		"share":         func(m *Measure) { m.To = []float64{1.5, -0.5} },
		"sum":           func(m *Measure) { m.To = []float64{0.5, 0.2} },
		"no number":     func(m *Measure) { m.Kept[0] = math.NaN() },
		"negative time": func(m *Measure) { m.Steps[0].MS = -1 },
		"endless time":  func(m *Measure) { m.Steps[0].Busy = math.Inf(1) },
		"slowdown":      func(m *Measure) { m.Slowdown = 0 },
		"prefill":       func(m *Measure) { m.Prefill = math.NaN() },
		"routed":        func(m *Measure) { m.Routed = math.MaxUint64 },
		"live":          func(m *Measure) { m.Live = -1 },
	} {
		m := good()
		change(&m.List[0])
		if err := m.Check(); !errors.Is(err, ErrCommand) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.List = make([]Measure, MaxMeasures+1)
	if err := m.Check(); !errors.Is(err, ErrCommand) {
		t.Errorf("many replicas: %v", err)
	}
}

func FuzzMeasures(f *testing.F) {
	m := good()
	text, err := json.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"list":[{"to":[1e308,1e308],"kept":[0,0],"slowdown":1}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var m Measures
		if json.Unmarshal(text, &m) != nil || m.Check() != nil {
			return
		}
		for _, x := range m.List {
			for _, v := range x.To {
				if v < 0 || v > 1 {
					t.Errorf("share %g", v)
				}
			}
		}
	})
}
