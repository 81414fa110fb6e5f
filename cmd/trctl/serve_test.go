package main

import (
	"log/slog"
	"net"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// parseServe runs the parser alone.
func parseServe(t *testing.T, args ...string) (settings, error) {
	t.Helper()
	var c cli
	parser, err := newParser(&c, process{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append([]string{"serve"}, args...)); err != nil {
		return settings{}, err
	}
	return c.Serve.settings()
}

func TestServeSettings(t *testing.T) {
	dir := t.TempDir()
	half := 0.5
	tests := []struct {
		name string
		args []string
		want func(*settings)
	}{
		{"nothing", nil, func(*settings) {}},
		{"scalars", []string{"--listen=:1", "--page-size=16", "--kv-tokens=4096", "--workers=1", "--log-level=error", "--drain-timeout=2s", "--hang-after=24h"}, func(s *settings) {
			level := slog.LevelError
			s.Listen, s.PageSize, s.KVTokens, s.Workers, s.LogLevel, s.DrainTimeout, s.HangAfter = ":1", 16, 4096, 1, &level, 2*time.Second, 24*time.Hour
		}},
		{"bounds", []string{"--max-rows=2", "--max-queue=3", "--chunk-tokens=4"}, func(s *settings) {
			s.MaxRows, s.MaxQueue, s.ChunkTokens = 2, 3, 4
		}},
		{"names and origins", []string{"--allow-hosts=a,b", "--allow-origins=https://c"}, func(s *settings) {
			s.AllowHosts, s.AllowOrigins = []string{"a", "b"}, []string{"https://c"}
		}},
		{"one threshold for all", []string{"--batch-threshold=3", "--longest-wait=20ms"}, func(s *settings) {
			for i := range s.Models {
				s.Models[i].Threshold, s.Models[i].LongestWait = 3, 20*time.Millisecond
			}
			s.AutoThresholds = false // one has been chosen
		}},
		{"a threshold each", []string{"--batch-threshold=1,4", "--longest-wait=auto,1s"}, func(s *settings) {
			s.Models[1].Threshold, s.Models[1].LongestWait = 4, time.Second
			s.AutoThresholds = false
		}},
		{"a threshold to begin with", []string{"--batch-threshold=2", "--auto-thresholds", "--admin-socket=/run/x"}, func(s *settings) {
			s.Models[0].Threshold, s.Models[1].Threshold, s.AdminSocket = 2, 2, "/run/x"
		}},
		{"fixed thresholds", []string{"--no-auto-thresholds"}, func(s *settings) { s.AutoThresholds = false }},
		{"other policy has no threshold", []string{"--policy=random"}, func(s *settings) {
			s.Deployments[0].Policy = node.Policy{Name: "random"}
		}},
		{"same policy keeps its threshold", []string{"--policy=r-stitch"}, func(*settings) {}},
		{"threshold", []string{"--policy=random", "--threshold=0.5"}, func(s *settings) {
			s.Deployments[0].Policy = node.Policy{Name: "random", Threshold: &half}
		}},
		{"a recorded run", []string{"--policy=trace", "--trace=0 1 drop, 3@1 0 keep"}, func(s *settings) {
			s.Deployments[0].Policy = node.Policy{Name: "trace", Trace: "0 1 drop, 3@1 0 keep"}
		}},
		{"embedded models", []string{"--models=tiny-s,tiny-m"}, func(s *settings) {
			s.Models[1].Name = "tiny-m"
			s.Deployments[0].Models = []string{"tiny-s", "tiny-m"}
		}},
		{"directories", []string{"--models=tiny-s," + dir, "--name=mine"}, func(s *settings) {
			name := dir[strings.LastIndexByte(dir, '/')+1:]
			s.Models[1] = node.Model{Name: name, Dir: dir, Threshold: 1}
			s.Deployments[0] = node.Deployment{Name: "mine", Models: []string{"tiny-s", name}, Policy: node.Policy{Name: "r-stitch"}}
		}},
		{"device", []string{"--device=cpu", "--gpu-memory=141GB", "--gpu-memory-share=0.5"}, func(s *settings) {
			s.Device, s.GPUMemory, s.MemoryShare = "cpu", 141e9, 0.5
		}},
		{"gpus", []string{"--device=cuda", "--gpus=1,0"}, func(s *settings) { s.Device, s.GPUs = "cuda", []int{1, 0} }},
		{"dummy models of the catalogue", []string{"--models=qwen3-0.6b,Qwen/Qwen3-32B", "--load=dummy:7"}, func(s *settings) {
			seed := uint64(7)
			s.Models[0] = node.Model{Name: "qwen3-0.6b", Dummy: &seed, Threshold: 1}
			s.Models[1] = node.Model{Name: "qwen3-32b", Dummy: &seed, Threshold: 1}
			s.Deployments[0] = node.Deployment{Name: "default", Models: []string{"qwen3-0.6b", "qwen3-32b"}, Policy: node.Policy{Name: "r-stitch"}}
		}},
		{"one model", []string{"--models=tiny-l"}, func(s *settings) {
			s.Models, s.Deployments = []node.Model{{Name: "tiny-l", Threshold: 1}}, nil
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := defaultSettings()
			test.want(&want)
			want.CUDA.CubinDir, _ = (&gpuFlags{}).cacheDir()
			got, err := parseServe(t, test.args...)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestServeSettingsErrors(t *testing.T) {
	tests := []struct {
		name, want string
		args       []string
	}{
		{"unknown model", `did you mean "tiny-s"`, []string{"--models=tiny-x"}},
		{"no directory", "not a directory", []string{"--models=./nowhere"}},
		{"policy for one model", "exactly one deployment", []string{"--models=tiny-s", "--policy=random"}},
		{"name for one model", "0 deployments", []string{"--models=tiny-s", "--name=x"}},
		{"too many thresholds", "3 values for 2 models", []string{"--batch-threshold=1,2,3"}},
		{"threshold too small", "models[0].threshold", []string{"--batch-threshold=0"}},
		{"wait", "neither auto", []string{"--longest-wait=never"}},
		{"page size", "page_size", []string{"--page-size=0"}},
		{"unknown policy", `did you mean "random"?`, []string{"--policy=randon"}},
		{"policy threshold", "deployments[0].policy", []string{"--policy=random", "--threshold=7"}},
		{"level", "--log-level", []string{"--log-level=x"}},
		{"device", "is not one of auto, cpu, cuda", []string{"--device=tpu"}},
		{"gpus", "3 ordinals for 2 models", []string{"--gpus=0,1,2"}},
		{"gpus on the CPU", "gpus[0]", []string{"--gpus=0", "--device=cpu"}},
		{"memory", "no size", []string{"--gpu-memory=much"}},
		{"share", "--gpu-memory-share", []string{"--gpu-memory-share=0"}},
		{"share above one", "gpu_memory_share", []string{"--gpu-memory-share=1.5"}},
		{"load", "dummy:SEED", []string{"--load=file"}},
		{"schedule", "there are delayed, adaptive", []string{"--schedule=hasty"}},
		{"same model twice", "used twice", []string{"--models=tiny-s,tiny-s"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := parseServe(t, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestPrecedence(t *testing.T) {
	t.Setenv("TRCTL_FILE", "testdata/precedence.yaml")
	got, err := parseServe(t)
	if err != nil || got.PageSize != 16 || got.MaxRows != 7 {
		t.Fatalf("file: page size %d, max rows %d, %v", got.PageSize, got.MaxRows, err)
	}
	t.Setenv("TRCTL_PAGE_SIZE", "32")
	if got, err = parseServe(t); err != nil || got.PageSize != 32 || got.MaxRows != 7 {
		t.Fatalf("environment over file: page size %d, max rows %d, %v", got.PageSize, got.MaxRows, err)
	}
	if got.Schedule != schedule.Lockstep {
		t.Fatalf("schedule of the file: %s", got.Schedule)
	}
	t.Setenv("TRCTL_SCHEDULE", "eager")
	if got, err = parseServe(t); err != nil || got.Schedule != schedule.Eager {
		t.Fatalf("schedule of the environment: %s, %v", got.Schedule, err)
	}
	if got, err = parseServe(t, "--page-size=8", "--schedule=adaptive"); err == nil && got.Schedule != schedule.Adaptive {
		t.Fatalf("schedule of the flag: %s", got.Schedule)
	}
	if err != nil || got.PageSize != 8 || got.MaxRows != 7 {
		t.Fatalf("flag over environment: page size %d, max rows %d, %v", got.PageSize, got.MaxRows, err)
	}
}

// The first signal ends the context; afterwards signals have their default effect.
func TestUntilSignal(t *testing.T) {
	ctx, stop := untilSignal(t.Context())
	defer stop()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if t.Context().Err() != nil || exitCode(ctx.Err()) != exitInterrupted {
		t.Errorf("after a signal: %v", ctx.Err())
	}
}

// A name means one thing: a deployment hides the model that it is named after.
func TestAnnounceNamesOnce(t *testing.T) {
	var b strings.Builder
	cfg := node.Defaults()
	cfg.Deployments[0].Name = "tiny-s"
	announce(&b, &cfg, &net.TCPAddr{IP: net.IPv4zero, Port: 8123})
	if n := strings.Count(b.String(), "\n  tiny-s "); n != 1 {
		t.Errorf("tiny-s is listed %d times:\n%s", n, &b)
	}
}

func TestEmptyVariablesAreUnset(t *testing.T) {
	t.Setenv("TRCTL_PAGE_SIZE", "")
	t.Setenv("TRCTL_OUTPUT", "")
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"version"}, process{out: &out, err: &errs}); code != exitDone {
		t.Errorf("exit code %d: %s", code, &errs)
	}
	s, err := parseServe(t)
	if err != nil || s.PageSize != node.Defaults().PageSize {
		t.Errorf("page size %d, %v", s.PageSize, err)
	}
}

func TestAnnounce(t *testing.T) {
	var b strings.Builder
	cfg := node.Defaults()
	announce(&b, &cfg, &net.TCPAddr{IP: net.IPv4zero, Port: 8123})
	for _, part := range []string{
		"serves on http://127.0.0.1:8123\n",
		"  tiny    tiny-s + tiny-l write together, policy r-stitch threshold 0.01\n",
		"  tiny-l  alone, embedded\n",
		`curl -sN http://127.0.0.1:8123/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"tiny","stream":true,`,
	} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("announcement lacks %q:\n%s", part, b.String())
		}
	}
}
