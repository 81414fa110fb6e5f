package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/cuda/inventory"
)

// Times of a Watcher.
const (
	// wait bounds one wait for a fault, and so how late the end of the context and new devices are noticed.
	wait = 250 * time.Millisecond
	// minPause and maxPause are how long the watch pauses after it has failed; the pause doubles. On some drivers a GPU
	// that is lost lets every wait fail at once.
	minPause, maxPause = time.Second, time.Minute
	// told is how long a failure of the watch is not told again.
	told = 10 * maxPause
)

// Device is a GPU that the process uses, or may come to use.
type Device struct {
	// Ordinal is the driver's number for it in this process.
	Ordinal    int
	UUID, Name string
}

// Events are where faults come from; *inventory.Events implements it.
type Events interface {
	Add(uuid string) error
	Next(wait time.Duration) (e inventory.Event, ok bool, err error)
	Close() error
}

// NVML opens the events of this machine.
func NVML() (Events, error) {
	events, err := inventory.OpenEvents()
	if err != nil {
		return nil, err // a nil *inventory.Events would be no nil Events
	}
	return events, nil
}

// Config configures a Watcher.
type Config struct {
	// Open is called by Run, again after a failure. An error that wraps inventory.ErrNoNVML ends the watch.
	Open func() (Events, error)
	// Used is closed once Devices has one.
	Used <-chan struct{}
	// Devices are those that are in use now. It is called often, and must be cheap.
	Devices func() []Device
	// Spoilt is told of a fault after which the work on a device cannot go on. May be nil.
	Spoilt func(d Device, fault error)
	// Condemned is told, before Spoilt, of a fault after which a device must not be used until somebody has looked at it
	// (inventory.Event.Condemns). It must be quick. May be nil.
	Condemned func(d Device, e inventory.Event)
	// Metrics receives the metric. May be nil.
	Metrics *prometheus.Registry
	Log     *slog.Logger
}

// Watcher tells of the faults of the GPUs that are in use.
type Watcher struct {
	cfg    Config
	log    *slog.Logger
	counts *prometheus.CounterVec
	// What follows belongs to Run.
	events Events
	// watched are the devices that events has, added those that were given to it.
	watched int
	added   map[string]bool
	// deaf are the devices of which it was told that they are not watched.
	deaf  map[string]bool
	storm storm
	pause time.Duration
	// failed is when the watch failed last.
	failed time.Time
}

// New registers the metric, and starts nothing.
func New(cfg Config) (*Watcher, error) {
	w := &Watcher{
		cfg: cfg, log: cfg.Log, added: map[string]bool{}, deaf: map[string]bool{}, pause: minPause, storm: storm{},
		counts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trctl_gpu_faults_total", Help: "Faults of GPUs in use, by Xid; not seen in builds without NVML.",
		}, []string{"device", "xid"}),
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(w.counts); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return w, nil
}

// Run watches until ctx ends, or until it is known that there is nothing to watch. It returns nil.
func (w *Watcher) Run(ctx context.Context) error {
	select {
	case <-w.cfg.Used:
	case <-ctx.Done():
		return nil
	}
	defer w.close()
	for ctx.Err() == nil {
		if w.events == nil && !w.open(ctx) {
			break
		}
		if w.events != nil {
			w.turn(ctx)
		}
		w.report(w.storm.due(time.Now()))
	}
	w.report(w.storm.rest())
	return nil
}

// open opens the events, and reports false if that will never work. If it may work later, it has paused.
func (w *Watcher) open(ctx context.Context) bool {
	events, err := w.cfg.Open()
	switch {
	case err == nil:
		w.events = events
	case errors.Is(err, inventory.ErrNotBuilt):
		w.log.Debug("faults of GPUs are not watched", "err", err)
		return false
	case errors.Is(err, inventory.ErrNoNVML):
		w.log.Warn("faults of GPUs are not watched", "err", err)
		return false
	default:
		w.fail(ctx, err)
	}
	return true
}

// turn waits once for a fault of the devices that are in use by now.
func (w *Watcher) turn(ctx context.Context) {
	devices := w.cfg.Devices()
	for _, d := range devices {
		w.add(d)
	}
	if w.watched == 0 {
		sleep(ctx, wait)
		return
	}
	e, ok, err := w.events.Next(wait)
	switch {
	case err != nil:
		w.close()
		w.fail(ctx, err)
	case ok:
		w.note(e, devices)
	}
}

// add lets a device be watched, unless it is.
func (w *Watcher) add(d Device) {
	if w.added[d.UUID] {
		return
	}
	w.added[d.UUID] = true
	if err := w.events.Add(d.UUID); err != nil {
		if !w.deaf[d.UUID] {
			w.deaf[d.UUID] = true
			w.log.Warn("faults of a GPU are not watched", "gpu", d.Ordinal, "uuid", d.UUID, "name", d.Name, "err", err)
			if errors.Is(err, inventory.ErrGPULost) { // it is gone, and no event will say so
				w.condemn(d, inventory.Event{Kind: inventory.Lost, UUID: d.UUID})
			}
		}
		return
	}
	w.watched++
	delete(w.deaf, d.UUID)
	for _, label := range inventory.Labels() { // so that the first fault is seen as a rise from 0
		w.counts.WithLabelValues(strconv.Itoa(d.Ordinal), label)
	}
}

// fail tells of a failure of the whole watch, and pauses.
func (w *Watcher) fail(ctx context.Context, err error) {
	now := time.Now()
	if w.failed.IsZero() || now.Sub(w.failed) > told {
		w.pause = minPause
		w.log.Warn("the watch for faults of GPUs has failed; it is tried again, and may miss faults meanwhile", "err", err)
	}
	w.failed = now
	sleep(ctx, w.pause)
	w.pause = min(2*w.pause, maxPause)
}

// close lets go of the events; they may be opened again.
func (w *Watcher) close() {
	if w.events == nil {
		return
	}
	if err := w.events.Close(); err != nil {
		w.log.Debug("end the watch for faults of GPUs", "err", err)
	}
	w.events, w.watched = nil, 0
	clear(w.added)
}

// note counts and tells a fault.
func (w *Watcher) note(e inventory.Event, devices []Device) {
	d, device := Device{Ordinal: -1, UUID: e.UUID}, "unknown"
	if i := slices.IndexFunc(devices, func(d Device) bool { return e.UUID != "" && d.UUID == e.UUID }); i >= 0 {
		d = devices[i]
		device = strconv.Itoa(d.Ordinal)
	}
	w.counts.WithLabelValues(device, e.Label()).Inc()
	if w.storm.first(occurrence{d, e.Kind, e.Code}, time.Now()) {
		w.tell("GPU fault", d, e)
	}
	w.condemn(d, e)
	if w.cfg.Spoilt != nil && d.Ordinal >= 0 && e.Meaning().Spoils {
		w.cfg.Spoilt(d, fmt.Errorf("%w: %s", inventory.ErrGPULost, e))
	}
}

// condemn passes on that a device must not be used.
func (w *Watcher) condemn(d Device, e inventory.Event) {
	if w.cfg.Condemned != nil && d.Ordinal >= 0 && e.Condemns() {
		w.cfg.Condemned(d, e)
	}
}

// report tells of faults that came again.
func (w *Watcher) report(list []repeat) {
	for _, r := range list {
		if r.occurrence == (occurrence{}) {
			w.log.Warn("more GPU faults came, of too many kinds to tell them apart; see the driver's log (dmesg)", "times", r.times)
			continue
		}
		w.tell("GPU fault came again", r.device, inventory.Event{Kind: r.kind, UUID: r.device.UUID, Code: r.code}, "times", r.times)
	}
}

// tell logs a fault.
func (w *Watcher) tell(message string, d Device, e inventory.Event, more ...any) {
	m := e.Meaning()
	level := slog.LevelWarn
	if m.Urgent {
		level = slog.LevelError
	}
	args := []any{"gpu", d.Ordinal, "uuid", d.UUID, "name", d.Name}
	if e.Kind == inventory.XID {
		args = append(args, "xid", e.Code)
	}
	args = append(args, "meaning", m.What, "do", m.Do)
	w.log.Log(context.Background(), level, message, append(args, more...)...)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
