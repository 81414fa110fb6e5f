package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/cuda/inventory"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// machine is a fake NVML, and the GPUs that are in use.
type machine struct {
	mu      sync.Mutex
	devices []Device
	// openErr, addErr (by UUID) and nextErr (one for each wait) are what goes wrong.
	openErr error
	addErr  map[string]error
	nextErr []error
	opened  int
	closed  int
	added   []string
	queue   []inventory.Event
	spoilt  []int
	// condemned are the faults that condemn, and what was spoilt by then.
	condemned []string
}

func newMachine() *machine {
	m := &machine{addErr: map[string]error{}}
	m.use(0)
	return m
}

func (m *machine) use(ordinal int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices = append(m.devices, Device{ordinal, fmt.Sprintf("GPU-%d", ordinal), "NVIDIA H200"})
}

func (m *machine) inUse() []Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.devices
}

func (m *machine) fault(ordinal int, code uint64) {
	m.send(inventory.Event{Kind: inventory.XID, UUID: fmt.Sprintf("GPU-%d", ordinal), Code: code})
}

func (m *machine) send(e inventory.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = append(m.queue, e)
}

func (m *machine) fail(errs ...error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nextErr = errs
}

func (m *machine) open() (Events, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened++
	return m, m.openErr
}

func (m *machine) Add(uuid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.added = append(m.added, uuid)
	return m.addErr[uuid]
}

func (m *machine) Next(wait time.Duration) (inventory.Event, bool, error) {
	m.mu.Lock()
	if len(m.nextErr) > 0 {
		err := m.nextErr[0]
		m.nextErr = m.nextErr[1:]
		m.mu.Unlock()
		return inventory.Event{}, false, err
	}
	if len(m.queue) > 0 {
		e := m.queue[0]
		m.queue = m.queue[1:]
		m.mu.Unlock()
		return e, true, nil
	}
	m.mu.Unlock()
	<-time.After(wait) // in a synctest bubble: no real time
	return inventory.Event{}, false, nil
}

func (m *machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed++
	return nil
}

// trial runs a Watcher of a machine in a bubble; during gets the time to pass, and the lines of the log are returned.
func trial(t *testing.T, m *machine, during func(metrics *prometheus.Registry)) (lines []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		metrics, used := prometheus.NewRegistry(), make(chan struct{})
		if len(m.devices) > 0 {
			close(used)
		}
		w, err := New(Config{
			Open: m.open, Used: used, Devices: m.inUse, Metrics: metrics,
			Spoilt: func(d Device, fault error) {
				if !errors.Is(fault, inventory.ErrGPULost) {
					t.Errorf("the fault is %v", fault)
				}
				m.spoilt = append(m.spoilt, d.Ordinal)
			},
			Condemned: func(d Device, e inventory.Event) {
				m.condemned = append(m.condemned, fmt.Sprintf("%d by %s after %d", d.Ordinal, e.Label(), len(m.spoilt)))
			},
			Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}})),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group conc.WaitGroup
		ended := make(chan struct{})
		group.Go(func() {
			defer close(ended)
			if err := w.Run(ctx); err != nil {
				t.Errorf("Run returned %v", err)
			}
		})
		during(metrics)
		cancel()
		pass(2 * wait)
		select {
		case <-ended:
		default:
			t.Error("Run goes on after its context has ended")
		}
		group.Wait()
		if m.closed != m.opened && m.openErr == nil {
			t.Errorf("opened %d times, closed %d times", m.opened, m.closed)
		}
		if text := strings.TrimSpace(out.String()); text != "" {
			lines = strings.Split(text, "\n")
		}
	})
	return lines
}

// pass lets time pass in a bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// expect compares the lines of a log with what each must contain, in order.
func expect(t *testing.T, lines []string, parts ...string) {
	t.Helper()
	ok := len(lines) == len(parts)
	for i := 0; ok && i < len(parts); i++ {
		ok = strings.Contains(lines[i], parts[i])
	}
	if !ok {
		t.Errorf("the log has %d lines\n%s\nwant %d with\n%s", len(lines), strings.Join(lines, "\n"), len(parts), strings.Join(parts, "\n"))
	}
}

// counted reads the metric of a device and an Xid.
func counted(t *testing.T, metrics *prometheus.Registry, device, xid string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); f.GetName() == "trctl_gpu_faults_total" && l[0].GetValue() == device && l[1].GetValue() == xid {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// A fault that condemns a GPU is passed on each time, before the GPU is spoilt; a GPU that does not answer when it is to be
// watched is condemned too. Memory errors that were contained condemn nothing, however often they come, nor do faults of GPUs
// that are not known.
func TestCondemned(t *testing.T) {
	m := newMachine()
	m.use(1)
	m.addErr["GPU-1"] = fmt.Errorf("no answer: %w", inventory.ErrGPULost)
	trial(t, m, func(*prometheus.Registry) {
		pass(wait)
		for range 100 {
			m.fault(0, 94)
		}
		m.fault(0, 64)
		m.fault(0, 95)
		m.fault(0, 79)
		m.fault(7, 79)
		m.send(inventory.Event{Kind: inventory.Lost})
		pass(time.Minute)
	})
	want := []string{"1 by lost after 0", "0 by 64 after 0", "0 by 95 after 0", "0 by 79 after 1"}
	if !slices.Equal(m.condemned, want) {
		t.Errorf("condemned %q, want %q", m.condemned, want)
	}
}

// Each fault is told once, with the device, what it means and what to do, and counted; some spoil the GPU.
func TestFaults(t *testing.T) {
	tests := []struct {
		e      inventory.Event
		line   []string
		label  string
		spoils bool
	}{
		{inventory.Event{Code: 13}, []string{"level=WARN", "xid=13", `meaning="exception in a kernel"`, "start again by themselves"}, "13", false},
		{inventory.Event{Code: 31}, []string{"level=WARN", "xid=31", "not mapped"}, "31", false},
		{inventory.Event{Code: 43}, []string{"level=WARN", "xid=43"}, "43", false},
		{inventory.Event{Code: 45}, []string{"level=WARN", "xid=45"}, "45", false},
		{inventory.Event{Code: 48}, []string{"level=ERROR", "xid=48", "memory error", "nvidia-smi --gpu-reset"}, "48", true},
		{inventory.Event{Code: 63}, []string{"level=WARN", "xid=63", "when convenient"}, "63", false},
		{inventory.Event{Code: 64}, []string{"level=ERROR", "xid=64", "trctl drain"}, "64", false},
		{inventory.Event{Code: 74}, []string{"level=ERROR", "xid=74", "NVLink"}, "74", false},
		{inventory.Event{Code: 79}, []string{"level=ERROR", "xid=79", "fallen off the bus", "restart"}, "79", true},
		{inventory.Event{Code: 92}, []string{"level=WARN", "xid=92"}, "92", false},
		{inventory.Event{Code: 94}, []string{"level=WARN", "xid=94", "contained"}, "94", false},
		{inventory.Event{Code: 95}, []string{"level=ERROR", "xid=95", "not contained"}, "95", true},
		{inventory.Event{Code: 119}, []string{"level=ERROR", "xid=119", "system processor"}, "119", true},
		{inventory.Event{Code: 120}, []string{"level=ERROR", "xid=120", "system processor"}, "120", true},
		{inventory.Event{Code: 4711}, []string{"level=WARN", "xid=4711", "not in trctl's list", "dmesg"}, "other", false},
		{inventory.Event{Kind: inventory.DoubleBit}, []string{"level=ERROR", "memory error"}, "double-bit-ecc", true},
		{inventory.Event{Kind: inventory.Lost}, []string{"level=ERROR", "does not answer"}, "lost", true},
	}
	for _, tt := range tests {
		if tt.e.Kind == "" {
			tt.e.Kind = inventory.XID
		}
		tt.e.UUID = "GPU-3"
		t.Run(tt.e.String(), func(t *testing.T) {
			m := newMachine()
			m.use(3)
			lines := trial(t, m, func(metrics *prometheus.Registry) {
				m.send(tt.e)
				pass(3 * quiet)
				if n := counted(t, metrics, "3", tt.label); n != 1 {
					t.Errorf("counted %v times", n)
				}
				if n := counted(t, metrics, "0", tt.label); n != 0 {
					t.Errorf("counted %v times at the other GPU", n)
				}
			})
			expect(t, lines, `msg="GPU fault"`)
			for _, part := range append(tt.line, "gpu=3 uuid=GPU-3", `name="NVIDIA H200"`) {
				if !strings.Contains(lines[0], part) {
					t.Errorf("%s\nlacks %s", lines[0], part)
				}
			}
			if spoilt := len(m.spoilt) == 1 && m.spoilt[0] == 3; spoilt != tt.spoils || len(m.spoilt) > 1 {
				t.Errorf("the GPUs %v are spoilt", m.spoilt)
			}
		})
	}
}

// A fault that comes thousands of times is logged at once, once a minute with a number, and at the end; others, and other
// GPUs, are not held back by it.
func TestStorm(t *testing.T) {
	m := newMachine()
	m.use(1)
	lines := trial(t, m, func(metrics *prometheus.Registry) {
		for range 90 {
			for range 100 {
				m.fault(0, 31)
			}
			pass(time.Second)
		}
		m.fault(1, 31)
		m.fault(0, 13)
		pass(time.Second)
		if n := counted(t, metrics, "0", "31"); n != 9000 {
			t.Errorf("counted %v", n)
		}
		pass(3 * time.Minute)
		m.fault(0, 31)
		m.fault(0, 31)
		pass(time.Second)
	})
	expect(t, lines,
		`msg="GPU fault" gpu=0`, `msg="GPU fault came again" gpu=0`, `msg="GPU fault" gpu=1`, `xid=13`,
		`msg="GPU fault came again" gpu=0`, `msg="GPU fault" gpu=0`, `times=1`)
	if !strings.HasSuffix(lines[1], "times=6099") && !strings.HasSuffix(lines[1], "times=5999") || !strings.Contains(lines[4], "times=") {
		t.Errorf("the repeats are\n%s\n%s", lines[1], lines[4])
	}
}

// Faults of more kinds than can be told apart are bounded too, in the log and in the metric.
func TestManyKinds(t *testing.T) {
	m := newMachine()
	lines := trial(t, m, func(metrics *prometheus.Registry) {
		for code := range uint64(1000) {
			m.fault(0, 100_000+code)
		}
		pass(2 * quiet)
		if n := counted(t, metrics, "0", "other"); n != 1000 {
			t.Errorf("counted %v", n)
		}
		families, err := metrics.Gather()
		if err != nil || len(families) != 1 || len(families[0].GetMetric()) != len(inventory.Labels()) {
			t.Errorf("the series are %v, %v", families, err)
		}
	})
	if len(lines) != maxStorm+2 || !strings.HasSuffix(lines[len(lines)-1], fmt.Sprint("times=", 1000-maxStorm-1)) {
		t.Errorf("%d lines, the last is %s", len(lines), lines[len(lines)-1])
	}
}

// A device that comes into use later is watched from then on; one that cannot be watched is told of once.
func TestDevices(t *testing.T) {
	m := newMachine()
	m.addErr["GPU-0"] = inventory.ErrNoEvents
	lines := trial(t, m, func(metrics *prometheus.Registry) {
		pass(2 * told)
		m.use(7)
		pass(time.Second)
		m.fault(7, 79)
		m.send(inventory.Event{Kind: inventory.XID, Code: 13}) // NVML does not say where
		pass(time.Second)
		if n := counted(t, metrics, "0", "79"); n != -1 {
			t.Errorf("the metric says %v of a GPU that is not watched", n)
		}
		if n := counted(t, metrics, "unknown", "13"); n != 1 {
			t.Errorf("counted %v", n)
		}
	})
	expect(t, lines, `msg="faults of a GPU are not watched" gpu=0 uuid=GPU-0`, "gpu=7", `gpu=-1 uuid=""`)
	if m.opened != 1 || len(m.added) != 2 {
		t.Errorf("opened %d times, added %v", m.opened, m.added)
	}
}

// What goes wrong with the watch is told once; where it may help it is tried again, ever more rarely.
func TestFailures(t *testing.T) {
	broken := errors.New("broken")
	t.Run("not in this build", func(t *testing.T) {
		m := newMachine()
		m.openErr = inventory.ErrNotBuilt
		expect(t, trial(t, m, func(*prometheus.Registry) { pass(2 * told) }))
		if m.opened != 1 {
			t.Errorf("opened %d times", m.opened)
		}
	})
	t.Run("no NVML", func(t *testing.T) {
		m := newMachine()
		m.openErr = inventory.ErrNoNVML
		expect(t, trial(t, m, func(*prometheus.Registry) { pass(2 * told) }), "are not watched")
		if m.opened != 1 {
			t.Errorf("opened %d times", m.opened)
		}
	})
	t.Run("open", func(t *testing.T) {
		m := newMachine()
		m.openErr = broken
		expect(t, trial(t, m, func(*prometheus.Registry) { pass(2 * told) }), "has failed")
		if m.opened < 10 || m.opened > 40 {
			t.Errorf("opened %d times", m.opened)
		}
	})
	t.Run("wait", func(t *testing.T) {
		m := newMachine()
		m.use(1)
		m.fail(broken, broken, broken)
		lines := trial(t, m, func(*prometheus.Registry) {
			pass(time.Minute)
			m.fault(1, 63) // it is watched again
			pass(2 * told)
			m.fail(broken) // much later it is told again
			pass(time.Minute)
		})
		expect(t, lines, "has failed", "xid=63", "has failed")
		if m.opened != 5 || len(m.added) != 10 {
			t.Errorf("opened %d times, added %v", m.opened, m.added)
		}
	})
	t.Run("nothing in use", func(t *testing.T) {
		m := newMachine()
		m.devices = nil
		expect(t, trial(t, m, func(*prometheus.Registry) { pass(2 * told) }))
		if m.opened != 0 {
			t.Errorf("opened %d times", m.opened)
		}
	})
}

// The metric is registered once.
func TestNew(t *testing.T) {
	metrics := prometheus.NewRegistry()
	if _, err := New(Config{Metrics: metrics}); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Metrics: metrics}); err == nil {
		t.Error("a second watcher has the same registry")
	}
	if _, err := NVML(); err != nil && !errors.Is(err, inventory.ErrNoNVML) {
		t.Errorf("NVML: %v", err)
	}
}
