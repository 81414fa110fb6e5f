package doctor

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/driver/drivertest"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output in testdata")

func h200(index int) inventory.GPU {
	return inventory.GPU{
		Index: index, Name: "NVIDIA H200", UUID: fmt.Sprintf("GPU-%d", index), PCIBusID: "00000000:1B:00.0", ComputeMajor: 9,
		MemoryTotal: 150_754_820_096, MemoryFree: 150_000_000_000, MemoryUsed: 754_820_096, Temperature: 31, Power: 77,
		Faults: true, ECC: inventory.ECC{Enabled: true},
	}
}

// goodMachine has two GPUs and everything installed.
func goodMachine() Prober {
	return Prober{
		Host: func() Host {
			return Host{
				GoVersion: "go1.26.8", OS: "linux", Arch: "amd64", CPUs: 16, MemoryBytes: 128 << 30, Cgo: true,
				CPU: []Feature{{"avx2", true}, {"fma", true}, {"avx512f", true}, {"avx512bf16", false}},
			}
		},
		Driver: func() (DriverFacts, error) { return DriverFacts{Version: 13000, Devices: 2}, nil },
		Inventory: func() (InventoryFacts, error) {
			return InventoryFacts{inventory.Versions{Driver: "580.95.05", CUDA: 13000}, []inventory.GPU{h200(0), h200(1)}}, nil
		},
		NVRTC: func(int) (LibraryFacts, error) { return LibraryFacts{"13.0", "libnvrtc.so.13"}, nil },
		CuBLASLt: func(int) (LibraryFacts, error) {
			return LibraryFacts{"13.1.0", "/usr/local/cuda/lib64/libcublasLt.so.13"}, nil
		},
		Cache: func() (CacheFacts, error) { return CacheFacts{Dir: "/var/cache/trctl/cubins"}, nil },
	}
}

// laptop has no GPU and nothing of CUDA.
func laptop() Prober {
	p := goodMachine()
	p.Driver = func() (DriverFacts, error) {
		return DriverFacts{}, fmt.Errorf("%w: library not found: libcuda.so.1", driver.ErrNoDriver)
	}
	p.Inventory = func() (InventoryFacts, error) { return InventoryFacts{}, inventory.ErrNoNVML }
	p.NVRTC = func(int) (LibraryFacts, error) { return LibraryFacts{}, nvrtc.ErrNoLibrary }
	p.CuBLASLt = func(int) (LibraryFacts, error) { return LibraryFacts{}, cublaslt.ErrNoLibrary }
	return p
}

// plainBuild is the machine as a build without NVML sees it.
func plainBuild(p Prober) Prober {
	p.Inventory = func() (InventoryFacts, error) { return InventoryFacts{}, inventory.ErrNotBuilt }
	facts, err := p.Driver()
	facts.Release = "580.95.05"
	for i := range facts.Devices {
		g := h200(i)
		facts.GPUs = append(facts.GPUs, inventory.GPU{
			Index: i, Name: g.Name, UUID: g.UUID, PCIBusID: g.PCIBusID, ComputeMajor: g.ComputeMajor, MemoryTotal: g.MemoryTotal,
		})
	}
	p.Driver = func() (DriverFacts, error) { return facts, err }
	return p
}

func TestReports(t *testing.T) {
	bareGPU := goodMachine()
	bareGPU.NVRTC, bareGPU.CuBLASLt = laptop().NVRTC, laptop().CuBLASLt
	bareGPU.Driver = func() (DriverFacts, error) {
		return DriverFacts{Version: 12080, Devices: 2, Peerless: []string{"0-1"}}, nil
	}
	plain := plainBuild(goodMachine())
	plainLaptop := plainBuild(laptop())
	probers := map[string]Prober{
		"good": goodMachine(), "laptop": laptop(), "bare-gpu": bareGPU, "good-plain": plain, "laptop-plain": plainLaptop,
	}
	for name, p := range probers {
		t.Run(name, func(t *testing.T) {
			r := Run(p)
			var text, js strings.Builder
			if err := errors.Join(r.WriteText(&text), r.WriteJSON(&js)); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", text.String())
			golden(t, name+".json", js.String())
			var back Report
			if err := json.Unmarshal([]byte(js.String()), &back); err != nil || len(back.Checks) != len(r.Checks) {
				t.Errorf("JSON does not come back: %v", err)
			}
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -rewrite to accept):\n%s", name, got)
	}
}

func TestJudgements(t *testing.T) {
	tests := []struct {
		name    string
		change  func(*Prober)
		check   string
		status  Status
		fix     string
		healthy bool
		backend string
	}{
		{"old driver", func(p *Prober) {
			p.Driver = func() (DriverFacts, error) { return DriverFacts{}, &driver.OldDriverError{Have: 11080, Need: 12000} }
		}, "driver", Fail, "525", false, "cpu"},
		{"driver that does not start", func(p *Prober) {
			p.Driver = func() (DriverFacts, error) {
				return DriverFacts{}, &driver.Error{Op: "initialise driver", Code: 803, Name: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}
			}
		}, "driver", Fail, "restart", false, "cpu"},
		{"driver without a device", func(p *Prober) {
			p.Driver = func() (DriverFacts, error) { return DriverFacts{}, driver.ErrNoDevice }
		}, "driver", Warn, "container", true, "cpu"},
		{"no cgo", func(p *Prober) {
			*p = laptop()
			h := p.Host()
			h.Cgo = false
			p.Host = func() Host { return h }
		}, "host", Warn, "CGO_ENABLED=1", true, "cpu"},
		{"no AVX2", func(p *Prober) {
			h := p.Host()
			h.CPU = []Feature{{"avx2", false}, {"fma", true}}
			p.Host = func() Host { return h }
		}, "cpu", Warn, "AVX2", true, "cuda"},
		{"NVML not built beside a driver", func(p *Prober) { *p = plainBuild(*p) }, "nvml", Warn, "-tags nvml", true, "cuda"},
		{"old GPU without NVML", func(p *Prober) {
			p.Driver = func() (DriverFacts, error) {
				return DriverFacts{Devices: 1, GPUs: []inventory.GPU{{ComputeMajor: 7, MemoryTotal: 1}}}, nil
			}
			p.Inventory = func() (InventoryFacts, error) { return InventoryFacts{}, inventory.ErrNotBuilt }
		}, "gpu 0", Fail, "8.0", false, "cuda"},
		{"NVML missing beside a driver", func(p *Prober) {
			p.Inventory = func() (InventoryFacts, error) { return InventoryFacts{}, inventory.ErrNoNVML }
		}, "nvml", Warn, "utility", true, "cuda"},
		{"lost GPU", func(p *Prober) {
			p.Inventory = func() (InventoryFacts, error) {
				return InventoryFacts{GPUs: []inventory.GPU{h200(0)}}, fmt.Errorf("read GPU 1: %w", inventory.ErrGPULost)
			}
		}, "nvml", Fail, "Xid", false, "cuda"},
		{"old GPU", withGPU(func(g *inventory.GPU) { g.ComputeMajor, g.ComputeMinor = 7, 5 }), "gpu 0", Fail, "8.0", false, "cuda"},
		{"MIG", withGPU(func(g *inventory.GPU) { g.MIG = true }), "gpu 0", Warn, "MIG", true, "cuda"},
		{"memory errors", withGPU(func(g *inventory.GPU) { g.ECC.Uncorrectable = 3 }), "gpu 0", Warn, "reset", true, "cuda"},
		{"faults not told", withGPU(func(g *inventory.GPU) { g.Faults = false }), "gpu 0", Warn, "dmesg", true, "cuda"},
		{"GPU in use", withGPU(func(g *inventory.GPU) { g.MemoryFree /= 2 }), "gpu 0", Warn, "nvidia-smi", true, "cuda"},
		{"NVRTC missing for CUDA 12", func(p *Prober) {
			p.Driver = func() (DriverFacts, error) { return DriverFacts{Version: 12040, Devices: 1}, nil }
			p.NVRTC = func(maxMajor int) (LibraryFacts, error) {
				return LibraryFacts{}, fmt.Errorf("%w: up to %d", nvrtc.ErrNoLibrary, maxMajor)
			}
		}, "nvrtc", Fail, "nvidia-cuda-nvrtc-cu12", false, "cpu"},
		{"NVRTC missing beside a filled cache", func(p *Prober) {
			p.NVRTC = laptop().NVRTC
			p.Cache = func() (CacheFacts, error) { return CacheFacts{Dir: "/x", ReadOnly: true, Entries: 60}, nil }
		}, "nvrtc", Warn, "toolkit", true, "cuda"},
		{"cache cannot be made", func(p *Prober) {
			p.Cache = func() (CacheFacts, error) { return CacheFacts{}, errors.New("permission denied") }
		}, "cubin cache", Warn, "written", true, "cuda"},
		{"read-only cache beside NVRTC", func(p *Prober) {
			p.Cache = func() (CacheFacts, error) { return CacheFacts{Dir: "/x", ReadOnly: true}, nil }
		}, "cubin cache", Warn, "kernels build", true, "cuda"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := goodMachine()
			tt.change(&p)
			r := Run(p)
			c, ok := r.Find(tt.check)
			if !ok || c.Status != tt.status || !strings.Contains(c.Fix, tt.fix) {
				t.Errorf("got %+v", c)
			}
			if r.Healthy() != tt.healthy || r.Backend != tt.backend {
				t.Errorf("healthy %v, backend %s", r.Healthy(), r.Backend)
			}
			for _, c := range r.Checks {
				if (c.Status == OK) != (c.Fix == "") {
					t.Errorf("%s: status %s with fix %q", c.Name, c.Status, c.Fix)
				}
			}
		})
	}
}

// withGPU changes the first GPU of the good machine.
func withGPU(change func(*inventory.GPU)) func(*Prober) {
	return func(p *Prober) {
		g := h200(0)
		change(&g)
		p.Inventory = func() (InventoryFacts, error) { return InventoryFacts{GPUs: []inventory.GPU{g}}, nil }
	}
}

// Whatever the machine has, the real prober gives a whole report.
func TestThisMachine(t *testing.T) {
	r := Run(ThisMachine(Config{CacheDir: t.TempDir()}))
	for _, name := range []string{"host", "cpu", "driver", "nvml", "nvrtc", "cublaslt", "cubin cache"} {
		if c, ok := r.Find(name); !ok || c.Detail == "" {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if c, _ := r.Find("cubin cache"); c.Status != OK {
		t.Errorf("cache: %+v", c)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Error(err)
	}
	t.Logf("\n%s", b.String())
	if c, _ := Run(ThisMachine(Config{})).Find("cubin cache"); c.Status != Warn {
		t.Errorf("no cache folder: %+v", c)
	}
}

func TestDriverFacts(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{Devices: 3})
	d, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	facts, err := driverFacts(d)
	if err != nil || facts.Version != 13000 || facts.Devices != 3 || len(facts.Peerless) != 0 {
		t.Errorf("got %+v, %v", facts, err)
	}
	want := inventory.GPU{Index: 2, Name: "Fake GPU 2", ComputeMajor: 9, MemoryTotal: 1 << 30}
	got := facts.GPUs[2]
	if got.UUID == "" || got.PCIBusID == "" {
		t.Errorf("no identity: %+v", got)
	}
	want.UUID, want.PCIBusID = got.UUID, got.PCIBusID
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if n := f.Count("cuDevicePrimaryCtxRetain"); n != 0 {
		t.Errorf("the doctor made %d contexts", n)
	}
	f.Fail("cuDeviceCanAccessPeer", 2, driver.CodeInvalidValue)
	if _, err := driverFacts(d); err == nil {
		t.Error("failed query was ignored")
	}
}

func TestDriverRelease(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version:  gcc 12.2.0\n": "580.95.05",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build  (x)\n":                           "570.172.08",
		"GCC version: 12.2.0\n": "", "": "", "NVRM version:": "",
	} {
		if got := driverRelease(strings.NewReader(text)); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func FuzzTotalMemory(f *testing.F) {
	f.Add("MemTotal:       32874500 kB\nMemFree: 1 kB\n", uint64(32874500<<10))
	f.Add("MemFree: 1 kB\n", uint64(0))
	f.Add("MemTotal: 99999999999999999999 kB", uint64(0))
	f.Add("", uint64(0))
	f.Fuzz(func(t *testing.T, text string, _ uint64) {
		totalMemory(strings.NewReader(text)) // must not panic
	})
	if got := totalMemory(strings.NewReader("x\nMemTotal:       32874500 kB\n")); got != 32874500<<10 {
		f.Errorf("got %d", got)
	}
}
