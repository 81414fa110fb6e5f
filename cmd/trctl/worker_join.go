package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
	"github.com/tokenrouter/tokenrouter/internal/cluster/workernode"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

type workerCmd struct {
	Join workerJoinCmd `cmd:"" help:"Run a worker of a cluster: models on this machine's GPUs or CPU."`
}

type workerJoinCmd struct {
	Join string `env:"TRCTL_JOIN" placeholder:"ADDR" help:"Cluster port of a control node, host:port. A node that has joined knows where they are."`
	joinFlags
	nodeOfCluster
	Model         []string              `sep:"none" placeholder:"NAME[,tp=N][,gpus=I:J]" help:"Serve a model: a directory, a hub id that was pulled, or a name of the catalogue. May repeat. Without it the cluster places models here."`
	TP            int                   `name:"tp" env:"TRCTL_TP" default:"1" placeholder:"N" help:"GPUs that each model is spread over (${default})."`
	Listen        string                `default:":7000" placeholder:"ADDR" help:"Cluster port: gateways and other workers, by TLS 1.3 (${default})."`
	Advertise     string                `placeholder:"HOST[:PORT]" help:"Where others reach the cluster port (this machine's first address)."`
	Gossip        string                `placeholder:"ADDR" help:"Gossip port, TCP and UDP, encrypted (:7946, or a free one if that is taken)."`
	MetricsListen string                `placeholder:"ADDR" help:"Address of /metrics, /healthz and /readyz (none)."`
	DrainTimeout  time.Duration         `default:"10s" placeholder:"D" help:"How long requests in flight may take to end after a stop; what is left then goes on at other workers (${default})."`
	PageSize      *int                  `placeholder:"N" help:"Token slots in a page of keys and values (${page_size})."`
	KVTokens      *int                  `name:"kv-tokens" env:"TRCTL_KV_TOKENS" placeholder:"N" help:"Token slots of each model's pool (on a GPU what fits, the same for all its models; else 131072)."`
	Schedule      *schedule.Rule        `enum:"delayed,adaptive,eager" placeholder:"RULE" help:"When models start their steps: delayed, adaptive or eager (delayed)."`
	Lookahead     *subservice.Lookahead `enum:"auto,on,off" placeholder:"MODE" help:"Launch steps before the results of the one before are known, on a GPU: auto (where it is measured to pay), on or off (auto)."`
	Reproducible  *bool                 `negatable:"" help:"Answers on a GPU that are the same to the last bit whatever else runs, at some speed; on a CPU they always are (off)."`
	Workers       *int                  `placeholder:"N" help:"CPU threads that a model's step may use (all)."`
	HangAfter     *time.Duration        `placeholder:"D" help:"Least time that every step has before it is taken for one that hangs, for which the process is replaced (2s on a GPU, 5m on a CPU); a day is as good as never."`
	MaxRows       *int                  `placeholder:"N" help:"Most sequences in a step (64)."`
	MaxQueue      *int                  `placeholder:"N" help:"Most answers computed or waiting (1024)."`
	ChunkTokens   *int                  `placeholder:"N" help:"Most tokens of a prefill chunk (512)."`
	DryRun        bool                  `help:"Print where the memory of the models would go, and end."`
	workerDevices
}

// workerDevices are deviceFlags for a machine whose models each have their own GPUs.
type workerDevices struct {
	Device         *string   `placeholder:"DEVICE" help:"cuda, cpu, or auto: cuda on a machine with a GPU that can be used (auto)."`
	GPUs           []int     `name:"gpus" env:"TRCTL_GPUS" placeholder:"N" help:"GPUs of the worker, by number; each model takes the next of them (all)."`
	GPUMemory      *byteSize `name:"gpu-memory" env:"TRCTL_GPU_MEMORY" placeholder:"SIZE" help:"Memory that a GPU is taken to have, such as 141GB; with --dry-run no GPU is needed then (what the GPU says)."`
	GPUMemoryShare *float64  `name:"gpu-memory-share" env:"TRCTL_GPU_MEMORY_SHARE" placeholder:"S" help:"Part of a GPU's memory that its models may take together (0.9)."`
	Load           *loadFrom `placeholder:"dummy:SEED" help:"Fill the models' shapes with a hash instead of reading weights; their text is token ids in decimal."`
	gpuFlags
	CuBLASLt string `name:"cublaslt" env:"TRCTL_CUBLASLT" placeholder:"FILE" help:"cuBLASLt library to use instead of searching."`
}

// check reports flags that cannot be meant so; those of the engine are checked with it.
func (c *workerJoinCmd) check() error {
	switch {
	case c.DrainTimeout < 0:
		return usagef("--drain-timeout: is %s, must be at least 0s", c.DrainTimeout)
	case c.Listen == "":
		return usagef("--listen: it is empty; give an address such as :7000")
	}
	return firstOf(c.checkName(), checkDial("--join", c.Join, "a control node"), checkListen("--listen", c.Listen), checkAdvertise(c.Advertise),
		checkListen("--gossip", c.Gossip), checkListen("--metrics-listen", c.MetricsListen))
}

// Run joins a cluster, if that has not been done, and runs the worker.
func (c *workerJoinCmd) Run(ctx context.Context, p process) error {
	log, err := c.logger(p)
	if err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	cfg, pins, gpus, err := c.models(log)
	if err != nil {
		return err
	}
	if c.DryRun {
		return dryRun(p, &node.Config{Config: cfg})
	}
	if len(pins) > 0 {
		if err := c.printPlan(p, cfg, pins, gpus); err != nil {
			return err
		}
	}
	dir, saved, unlock, err := c.enter(ctx, p, log, cluster.Worker, c.Join, &c.joinFlags)
	if err != nil {
		return err
	}
	defer unlock()
	bars := newLoading(p)
	defer bars.end()
	cfg.Progress = bars.report
	cfg.Restarts = restartsBefore(os.Getenv(restartsEnv))
	own := workernode.Config{
		Dir: dir, Saved: saved, Listen: c.Listen, Advertise: c.Advertise, MetricsListen: c.MetricsListen,
		Engine: cfg, Pins: pins, GPUs: gpus, Resolve: c.resolve, DrainTimeout: c.DrainTimeout,
		Build: buildinfo.Current().Version, Log: log,
	}
	if c.Join != "" {
		own.Contacts = []string{c.Join}
	}
	var n *workernode.Node
	_, err = withGossip(c.Gossip, log, func(gossip string) (err error) {
		own.Gossip = gossip
		n, err = workernode.New(own)
		return err
	})
	if err != nil {
		return startError(err)
	}
	fmt.Fprintf(p.out, "trctl %s runs worker %s of cluster %s; others reach it at %s\n", buildinfo.Current().Version, saved.Node, saved.Cluster, n.Addr())
	return runMember(ctx, dir, n.Run, n.Ready(), func(context.Context) error {
		bars.end()
		announceWorker(p.out, n.State(), saved)
		return nil
	})
}

// models are what the worker is to serve: its engine's configuration, with the pinned
// models for a plan, the pins, and the machine's GPUs.
func (c *workerJoinCmd) models(log *slog.Logger) (engine.Config, []cluster.Pin, []cluster.GPU, error) {
	set := node.Defaults()
	set.Models, set.Deployments = nil, nil
	overwrite(&set.PageSize, c.PageSize)
	overwrite(&set.KVTokens, c.KVTokens)
	overwrite(&set.Schedule, c.Schedule)
	overwrite(&set.Lookahead, c.Lookahead)
	overwrite(&set.Reproducible, c.Reproducible)
	overwrite(&set.Workers, c.Workers)
	overwrite(&set.HangAfter, c.HangAfter)
	overwrite(&set.MaxRows, c.MaxRows)
	overwrite(&set.MaxQueue, c.MaxQueue)
	overwrite(&set.ChunkTokens, c.ChunkTokens)
	set.Logger = log
	devices := deviceFlags{
		Device: c.Device, GPUMemory: c.GPUMemory, GPUMemoryShare: c.GPUMemoryShare, Load: c.Load, gpuFlags: c.gpuFlags, CuBLASLt: c.CuBLASLt,
	}
	if err := devices.apply(&set); err != nil {
		return set.Config, nil, nil, err
	}
	if _, _, err := c.pins(nil, false); err != nil { // before the machine is asked
		return set.Config, nil, nil, err
	}
	var gpus []cluster.GPU
	if set.Device != "cpu" && !(c.DryRun && set.GPUMemory > 0) {
		var err error
		if gpus, err = engine.Inventory(c.GPUs); err != nil {
			return set.Config, nil, nil, fmt.Errorf("%w (trctl doctor says what is missing)", err)
		}
	}
	available := c.GPUs
	if len(available) == 0 {
		for _, g := range gpus {
			available = append(available, g.Ordinal)
		}
	}
	pins, models, err := c.pins(available, set.Device != "cpu" && len(available) > 0)
	if err != nil {
		return set.Config, nil, nil, err
	}
	set.Models = models
	for _, p := range pins {
		if len(p.GPUs) > 0 {
			set.GPUs = append(set.GPUs, p.GPUs[0])
		}
	}
	if len(set.GPUs) > 0 && len(set.GPUs) != len(set.Models) {
		return set.Config, nil, nil, usagef("--model: either all models have GPUs, or none")
	}
	check := set
	if len(models) == 0 {
		check.Models = []node.Model{{Name: "any", Threshold: 1}} // the cluster says which
		check.GPUs = nil
	}
	if err := check.Validate(); err != nil {
		return set.Config, nil, nil, &usageError{fmt.Errorf("configuration:\n%w", err)}
	}
	return set.Config, pins, gpus, nil
}

// pins reads --model, and gives each model that names no GPUs the next of those available.
func (c *workerJoinCmd) pins(available []int, onGPU bool) ([]cluster.Pin, []engine.Model, error) {
	var pins []cluster.Pin
	var models []engine.Model
	next := 0
	for _, item := range c.Model {
		p, err := parsePin(item, c.TP)
		if err != nil {
			return nil, nil, err
		}
		if p.TP > workernode.MaxTP {
			return nil, nil, usagef("--model %s: tp=%d: a model cannot be spread over several GPUs yet; the largest value is %d", p.Source, p.TP, workernode.MaxTP)
		}
		m, err := c.resolve(p.Source)
		if err != nil {
			return nil, nil, err
		}
		p.Model = m.Name
		if len(p.Model) > handoff.MaxName {
			return nil, nil, usagef("--model: the name %q has more than %d bytes", p.Model, handoff.MaxName)
		}
		if slices.ContainsFunc(pins, func(q cluster.Pin) bool { return q.Model == p.Model }) {
			return nil, nil, usagef("--model: %s is named twice; start another worker for one more replica", p.Model)
		}
		for onGPU && len(p.GPUs) < p.TP {
			p.GPUs = append(p.GPUs, available[next%len(available)])
			next++
		}
		switch {
		case len(p.GPUs) > 0 && len(p.GPUs) != p.TP:
			return nil, nil, usagef("--model %s: %d GPUs for tp=%d", p.Source, len(p.GPUs), p.TP)
		case len(c.GPUs) > 0 && slices.ContainsFunc(p.GPUs, func(g int) bool { return !slices.Contains(c.GPUs, g) }):
			return nil, nil, usagef("--model %s: its GPUs %v are not among --gpus %v", p.Source, p.GPUs, c.GPUs)
		}
		pins, models = append(pins, p), append(models, m)
	}
	if c.TP > workernode.MaxTP {
		return nil, nil, usagef("--tp %d: a model cannot be spread over several GPUs yet; the largest value is %d", c.TP, workernode.MaxTP)
	}
	return pins, models, nil
}

// parsePin reads NAME[,tp=N][,gpus=I:J].
func parsePin(item string, tp int) (cluster.Pin, error) {
	parts := strings.Split(item, ",")
	p := cluster.Pin{Source: parts[0], TP: tp}
	bad := func(format string, args ...any) (cluster.Pin, error) {
		return p, usagef("--model %s: %s; it is NAME[,tp=N][,gpus=I:J]", item, fmt.Sprintf(format, args...))
	}
	if p.Source == "" {
		return bad("the name is missing")
	}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "tp":
			n, err := strconv.Atoi(value)
			if err != nil {
				return bad("tp=%s is no number", value)
			}
			p.TP = n
		case "gpus":
			for _, g := range strings.Split(value, ":") {
				n, err := strconv.Atoi(g)
				if err != nil || n < 0 {
					return bad("gpus=%s is no list such as 0:1", value)
				}
				p.GPUs = append(p.GPUs, n)
			}
		default:
			return bad("%q is neither tp nor gpus", key)
		}
	}
	if p.TP < 1 {
		return bad("tp=%d is less than 1", p.TP)
	}
	return p, nil
}

// resolve finds a model by its source.
func (c *workerJoinCmd) resolve(source string) (engine.Model, error) {
	m, err := modelNamed(source)
	if err != nil {
		var usage *usageError
		if errors.As(err, &usage) {
			err = &usageError{errors.New(strings.Replace(err.Error(), "--models:", "--model:", 1))}
		}
		return m, err
	}
	if c.Load != nil {
		m.Dummy = c.Load.dummy()
	}
	return m, nil
}

// announceWorker prints what the worker serves, and what is missing for requests to come.
func announceWorker(w io.Writer, s *state.State, saved *identity.Saved) {
	var served, idle []string
	for _, r := range s.AllReplicas() {
		if r.Node != saved.Node {
			continue
		}
		of := ""
		for name, d := range s.AllDeployments() {
			if slices.Contains(d.Models, r.Model) {
				of += ", in deployment " + name
			}
		}
		if of == "" {
			idle = append(idle, r.Model)
		}
		served = append(served, fmt.Sprintf("  %s: %s%s", r.ID, r.Model, of))
	}
	fmt.Fprintf(w, "It serves:\n%s\n", strings.Join(served, "\n"))
	if len(idle) > 0 {
		fmt.Fprintf(w, "No deployment has %s yet. Save this as deployment.yaml, say which models write together, and run `trctl apply -f deployment.yaml`:\n", strings.Join(idle, ", "))
		fmt.Fprintf(w, "  deployments:\n    - name: my-deployment\n      models: [%s]\n      policy: {name: r-stitch}\n", strings.Join(idle, ", "))
	}
}
