package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// process is what a command may touch of the operating system's process.
type process struct {
	in       io.Reader
	out, err io.Writer
}

// cli is the command line: one field a command.
type cli struct {
	Help    helpFlag    `short:"h" help:"Show help for a command."`
	Version versionFlag `env:"-" help:"Show the version."`

	Serve      serveCmd      `cmd:"" help:"Serve models behind one OpenAI-compatible endpoint, in one process."`
	Chat       chatCmd       `cmd:"" help:"Chat with a server; the colour of a token says which model wrote it."`
	Eval       evalCmd       `cmd:"" help:"Measure accuracy, large share and speed on problems with known answers."`
	Calibrate  calibrateCmd  `cmd:"" help:"Find the threshold of a routing policy on questions of one's own, and write the configuration."`
	Replay     replayCmd     `cmd:"" help:"Ask recorded requests again under another policy or threshold: where the texts part, and what that costs."`
	Bench      benchCmd      `cmd:"" help:"Measure speed and latency of any OpenAI-compatible server under load."`
	Solve      solveCmd      `cmd:"" help:"Find the best batching thresholds of given models, routing and step times."`
	BenchStep  benchStepCmd  `cmd:"" name:"bench-step" help:"Measure single steps of a model on this machine, beside what the hardware allows."`
	Sweep      sweepCmd      `cmd:"" help:"Measure or simulate throughput over batching thresholds and schedules, beside what the model of delayed batching predicts."`
	Timeline   timelineCmd   `cmd:"" help:"Play a few requests under several schedules in virtual time and draw who runs when."`
	Cluster    clusterCmd    `cmd:"" help:"Run control nodes, and operate a cluster."`
	Gateway    gatewayCmd    `cmd:"" help:"Run a gateway of a cluster."`
	Worker     workerCmd     `cmd:"" help:"Run a worker of a cluster."`
	Key        keyCmd        `cmd:"" help:"API keys of a cluster."`
	Apply      applyCmd      `cmd:"" help:"Declare deployments of a cluster."`
	Get        getCmd        `cmd:"" help:"Read something of a cluster, or of a running server."`
	Describe   describeCmd   `cmd:"" help:"Tell all that is known of one thing of a cluster, and why it is not ready."`
	Delete     deleteCmd     `cmd:"" help:"Delete something of a cluster."`
	Drain      drainCmd      `cmd:"" help:"Keep new work away from a node."`
	Undrain    undrainCmd    `cmd:"" help:"Give a drained node work again."`
	GPU        gpuCmd        `cmd:"" name:"gpu" help:"GPUs of a cluster: keep one out of use after a fault, and let it be used again."`
	Trace      traceCmd      `cmd:"" help:"Tell where a request was, and what it waited for."`
	Doctor     doctorCmd     `cmd:"" help:"Find out what this machine can run, and what to install."`
	Kernels    kernelsCmd    `cmd:"" help:"CUDA kernels."`
	Model      modelCmd      `cmd:"" help:"Inspect, compare, list and download models."`
	VersionCmd versionCmd    `cmd:"" name:"version" help:"Show the version."`
	Completion completionCmd `cmd:"" help:"Print a completion script for a shell."`
	HelpCmd    helpCmd       `cmd:"" name:"help" help:"Show help for a command or a topic."`
}

const description = `A small and a large language model write one answer together: after every token a policy decides which model computes the next one.

Every flag can be set by an environment variable, shown as ($TRCTL_…). Exit codes: trctl help exit-codes.`

// run is the whole program but for the process's exit.
func run(ctx context.Context, args []string, p process) int {
	lasting := stays(args)
	if lasting {
		// Before anything else: whoever starts a node may stop it at any time.
		var stop context.CancelFunc
		ctx, stop = untilSignal(ctx)
		defer stop()
	}
	err := execute(ctx, args, p)
	code := exitCode(err)
	if lasting && ctx.Err() != nil {
		code = stoppedCode(err)
	}
	if code != exitDone || exitCode(err) == exitDevice {
		fmt.Fprintf(p.err, "trctl: %v\n", err)
	}
	return code
}

// stays says that a command line runs until it is stopped, which is no failure.
func stays(args []string) bool {
	command := strings.Join(args[:min(len(args), 2)], " ")
	switch command {
	case "cluster init", "cluster join", "gateway join", "worker join":
		return true
	}
	return len(args) > 0 && args[0] == "serve"
}

func execute(ctx context.Context, args []string, p process) error {
	if err := unsetEmpty(); err != nil {
		return err
	}
	var c cli
	parser, err := newParser(&c, p)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if errors.Is(err, errShown) {
		return nil
	}
	if err != nil {
		return &usageError{fmt.Errorf("%w (see trctl --help)", err)}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	command.BindTo(ctx, (*context.Context)(nil))
	return command.Run(p, parser)
}

// unsetEmpty makes an empty TRCTL_ variable count as none, which is what a
// compose file or a unit means by VARIABLE=.
func unsetEmpty() error {
	for _, v := range os.Environ() {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "TRCTL_") && value == "" {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func newParser(c *cli, p process) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("trctl"),
		kong.Description(description),
		kong.NoDefaultHelp(),
		kong.DefaultEnvars("TRCTL"),
		kong.Writers(p.out, p.err),
		kong.Bind(p),
		named(map[string]string{
			"policies": strings.Join(policies.Names(), ", "), "schedules": strings.Join(schedule.Names(), ", "),
			"page_size": strconv.Itoa(node.Defaults().PageSize),
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
}

// named gives the flags whose text has ${name} the value of that name. The parser would look through variables of all
// flags anew at each of them, which costs a third of what it does.
func named(values map[string]string) kong.Option {
	return kong.PostBuild(func(k *kong.Kong) error {
		return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
			v, ok := node.(*kong.Value)
			if !ok {
				return next(nil)
			}
			for name, value := range values {
				if use := "${" + name + "}"; strings.Contains(v.Help, use) || strings.Contains(v.Default, use) || strings.Contains(v.Enum, use) {
					v.Tag.Vars = v.Tag.Vars.CloneWith(kong.Vars{name: value})
				}
			}
			return next(nil)
		})
	})
}

// untilSignal returns a context that the first SIGINT or SIGTERM cancels. After
// it the signals have their default effect again, so a second one ends the
// process at once. The returned function undoes all of it.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

type helpFlag bool

// BeforeReset runs before anything is checked, so that help needs no valid
// command line.
func (helpFlag) BeforeReset(ctx *kong.Context) error {
	if err := ctx.PrintUsage(false); err != nil {
		return err
	}
	return errShown
}

type versionFlag bool

func (versionFlag) BeforeReset(p process) error {
	fmt.Fprintln(p.out, "trctl", buildinfo.Current())
	return errShown
}

type helpCmd struct {
	Topic []string `arg:"" optional:"" help:"A command, or exit-codes."`
}

func (h *helpCmd) Run(p process, parser *kong.Kong) error {
	if len(h.Topic) == 1 && h.Topic[0] == "exit-codes" {
		_, err := io.WriteString(p.out, exitTopic)
		return err
	}
	_, err := parser.Parse(append(append([]string{}, h.Topic...), "--help"))
	if err == nil || errors.Is(err, errShown) {
		return nil
	}
	return &usageError{err}
}
