package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/cuda/faults"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
)

// reported is a source of faults.
type reported struct {
	added  chan string
	queue  chan inventory.Event
	closed chan struct{}
}

func newReported() *reported {
	return &reported{added: make(chan string, 16), queue: make(chan inventory.Event), closed: make(chan struct{})}
}

func (r *reported) Add(uuid string) error { r.added <- uuid; return nil }
func (r *reported) Close() error          { close(r.closed); return nil }

func (r *reported) Next(wait time.Duration) (inventory.Event, bool, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case e := <-r.queue:
		return e, true, nil
	case <-timer.C:
		return inventory.Event{}, false, nil
	}
}

// messages is a log handler that keeps the messages about faults of GPUs.
type messages struct {
	slog.Handler
	mu   *sync.Mutex
	list *[]string
}

func (m messages) WithAttrs([]slog.Attr) slog.Handler               { return m }
func (m messages) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }
func (m messages) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "GPU fault") {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
		m.mu.Lock()
		*m.list = append(*m.list, text)
		m.mu.Unlock()
	}
	return nil
}

// Faults that are reported of a GPU in use are logged and counted. One that spoils the GPU ends its replicas, which load
// again once it is open anew, though no call has failed; what is reported right after that is not held against it.
func TestReportedFaults(t *testing.T) {
	source, log := newReported(), messages{slog.DiscardHandler, new(sync.Mutex), new([]string)}
	cfg, _, opened, loaded := loading(t)
	cfg.Logger, cfg.Metrics = slog.New(log), prometheus.NewRegistry()
	cfg.Faults = func() (faults.Events, error) { return source, nil }
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	<-opened
	<-loaded
	<-loaded
	uuid := <-source.added
	if !strings.HasPrefix(uuid, "GPU-a0a0a0a0-") {
		t.Errorf("the faults of %q are watched", uuid)
	}
	since := func(opened time.Time) {
		e.gpus.mu.Lock()
		e.gpus.devices[0].opened = opened
		e.gpus.mu.Unlock()
	}
	tell := func(code uint64) { source.queue <- inventory.Event{Kind: inventory.XID, UUID: uuid, Code: code} }
	since(time.Now().Add(-settling)) // the GPU has been open for a while
	tell(31)
	tell(64)
	tell(95)
	<-opened
	<-loaded
	<-loaded
	since(time.Now().Add(time.Hour)) // however long that took
	tell(48)                         // late news of the same fault
	tell(13)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	<-source.closed
	if len(opened) != 0 {
		t.Error("the GPU was opened once more")
	}
	for i, part := range []string{"xid=31", "xid=64", "xid=95", "xid=48", "xid=13"} {
		if i >= len(*log.list) || !strings.Contains((*log.list)[i], part) || !strings.Contains((*log.list)[i], "gpu=0 uuid="+uuid+" name=Fake GPU 0") {
			t.Fatalf("line %d of the log lacks %s:\n%s", i, part, strings.Join(*log.list, "\n"))
		}
	}
	if got := faultCount(t, cfg.Metrics); got != 5 {
		t.Errorf("the metric has %v faults", got)
	}
}

func faultCount(t *testing.T, metrics *prometheus.Registry) (n float64) {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "trctl_gpu_faults_total" {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// A GPU whose faults spoil it again and again is given up, by the way of every other lost GPU.
func TestReportedFaultsEndEngine(t *testing.T) {
	source := newReported()
	cfg, _, opened, loaded := loading(t)
	cfg.Faults = func() (faults.Events, error) { return source, nil }
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	uuid := <-source.added
	for range maxLosses {
		if !received(e, opened) || !received(e, loaded) || !received(e, loaded) {
			t.Fatal("the engine has ended early")
		}
		e.gpus.mu.Lock()
		e.gpus.devices[0].opened = e.gpus.devices[0].opened.Add(-settling)
		e.gpus.mu.Unlock()
		source.queue <- inventory.Event{Kind: inventory.XID, UUID: uuid, Code: 79}
	}
	<-e.closing
	if err := e.Close(); !errors.Is(err, ErrDeviceLost) || !errors.Is(err, inventory.ErrGPULost) || !strings.Contains(err.Error(), "Xid 79") {
		t.Errorf("the engine ended with %v, want ErrDeviceLost and the fault", err)
	}
}

// Without NVML, and without a GPU, nothing is watched.
func TestNothingToWatch(t *testing.T) {
	e := start(t, func(cfg *Config) {
		cfg.Device = "cpu"
		dummies(cfg)
		cfg.Faults = func() (faults.Events, error) {
			t.Error("faults are watched without a GPU")
			return nil, inventory.ErrNotBuilt
		}
	})
	if list := e.gpus.list(); len(list) != 0 {
		t.Errorf("the GPUs in use are %v", list)
	}
}
