package doctor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/cpu"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// Config says where this machine's files are. The zero value uses the system's libraries and cannot check the cache.
type Config struct {
	// CacheDir is the folder of the cubin cache.
	CacheDir string
	// NVRTCPath and CuBLASLtPath are explicit libraries, as the worker's configuration has them.
	NVRTCPath, CuBLASLtPath string
}

// ThisMachine looks at the machine that it runs on.
func ThisMachine(cfg Config) Prober {
	return Prober{
		Host:      host,
		Driver:    probeDriver,
		Inventory: probeInventory,
		NVRTC: func(maxMajor int) (LibraryFacts, error) {
			c, err := nvrtc.Load(nvrtc.Options{LibraryPath: cfg.NVRTCPath, MaxMajor: maxMajor})
			if err != nil {
				return LibraryFacts{}, err
			}
			return LibraryFacts{Version: c.Version(), Path: c.Path()}, nil
		},
		CuBLASLt: func(maxMajor int) (LibraryFacts, error) {
			l, err := cublaslt.Load(cublaslt.Options{LibraryPath: cfg.CuBLASLtPath, MaxMajor: maxMajor})
			if err != nil {
				return LibraryFacts{}, err
			}
			return LibraryFacts{Version: l.Version(), Path: l.Path()}, nil
		},
		Cache: func() (CacheFacts, error) {
			c, err := nvrtc.OpenCache(nvrtc.CacheConfig{Dir: cfg.CacheDir})
			if err != nil {
				return CacheFacts{}, err
			}
			n, err := c.Len()
			return CacheFacts{Dir: c.Dir(), ReadOnly: c.ReadOnly(), Entries: n}, err
		},
	}
}

func host() Host {
	h := Host{
		GoVersion: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0), Cgo: cgo,
		CPU: features(runtime.GOARCH),
	}
	if f, err := os.Open("/proc/meminfo"); err == nil {
		h.MemoryBytes = totalMemory(f)
		f.Close()
	}
	return h
}

func features(arch string) []Feature {
	switch arch {
	case "amd64":
		return []Feature{
			{"avx2", cpu.X86.HasAVX2}, {"fma", cpu.X86.HasFMA}, {"avx512f", cpu.X86.HasAVX512F},
			{"avx512bf16", cpu.X86.HasAVX512BF16},
		}
	case "arm64":
		return []Feature{{"asimd", cpu.ARM64.HasASIMD}, {"sve", cpu.ARM64.HasSVE}}
	}
	return nil
}

// totalMemory reads the first line of meminfo that says MemTotal; 0 when there is none.
func totalMemory(r io.Reader) uint64 {
	lines := bufio.NewScanner(io.LimitReader(r, 64<<10))
	for lines.Scan() {
		rest, found := strings.CutPrefix(lines.Text(), "MemTotal:")
		if !found {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 50)
		if err != nil {
			return 0
		}
		return kib << 10
	}
	return 0
}

func probeDriver() (DriverFacts, error) {
	d, err := driver.Load()
	if err != nil {
		return DriverFacts{}, err
	}
	facts, err := driverFacts(d)
	if err != nil {
		return DriverFacts{}, err
	}
	if f, err := os.Open("/proc/driver/nvidia/version"); err == nil {
		facts.Release = driverRelease(f)
		f.Close()
	}
	return facts, nil
}

// driverRelease finds the release in what the kernel driver says about itself, the first word that looks like one in a
// line such as "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep…". It is empty when there is none.
func driverRelease(r io.Reader) string {
	lines := bufio.NewScanner(io.LimitReader(r, 4<<10))
	for lines.Scan() {
		rest, found := strings.CutPrefix(lines.Text(), "NVRM version:")
		if !found {
			continue
		}
		for word := range strings.FieldsSeq(rest) {
			if strings.Contains(word, ".") && strings.Trim(word, "0123456789.") == "" {
				return word
			}
		}
	}
	return ""
}

func driverFacts(d *driver.Driver) (DriverFacts, error) {
	f := DriverFacts{Version: d.Version(), Devices: d.DeviceCount()}
	devices := make([]driver.Device, f.Devices)
	for i := range devices {
		var err error
		if devices[i], err = d.Device(i); err != nil {
			return DriverFacts{}, err
		}
		g, err := describe(devices[i])
		if err != nil {
			return DriverFacts{}, err
		}
		f.GPUs = append(f.GPUs, g)
	}
	var err error
	f.Peerless, err = peerless(devices)
	return f, err
}

// describe reads what the driver knows of a device without a context on it.
func describe(v driver.Device) (g inventory.GPU, err error) {
	g.Index = v.Ordinal()
	var errs [5]error
	g.Name, errs[0] = v.Name()
	g.UUID, errs[1] = v.UUID()
	g.PCIBusID, errs[2] = v.PCIBusID()
	g.ComputeMajor, g.ComputeMinor, errs[3] = v.ComputeCapability()
	g.MemoryTotal, errs[4] = v.TotalMemory()
	return g, errors.Join(errs[:]...)
}

// peerless lists the pairs that cannot reach each other's memory.
func peerless(devices []driver.Device) ([]string, error) {
	var list []string
	for i, a := range devices {
		for j, b := range devices[:i] {
			there, err := a.CanAccessPeer(b)
			if err != nil {
				return nil, err
			}
			back, err := b.CanAccessPeer(a)
			if err != nil {
				return nil, err
			}
			if !there || !back {
				list = append(list, fmt.Sprintf("%d-%d", j, i))
			}
		}
	}
	return list, nil
}

func probeInventory() (InventoryFacts, error) {
	v, err := inventory.Open()
	if err != nil {
		return InventoryFacts{}, err
	}
	defer v.Close()
	var f InventoryFacts
	if f.Versions, err = v.Versions(); err != nil {
		return f, err
	}
	f.GPUs, err = v.GPUs()
	return f, err
}
