package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tokenrouter/tokenrouter/internal/node"
)

// deviceFlags say where models run and with how much memory.
type deviceFlags struct {
	Device         *string   `placeholder:"DEVICE" help:"cuda, cpu, or auto: cuda on a machine with a GPU that can be used (auto)."`
	GPUs           []int     `name:"gpus" env:"TRCTL_GPUS" placeholder:"N" help:"GPUs by number, one for all models or one each (0)."`
	GPUMemory      *byteSize `name:"gpu-memory" env:"TRCTL_GPU_MEMORY" placeholder:"SIZE" help:"Memory that a GPU is taken to have, such as 141GB; with --dry-run no GPU is needed then (what the GPU says)."`
	GPUMemoryShare *float64  `name:"gpu-memory-share" env:"TRCTL_GPU_MEMORY_SHARE" placeholder:"S" help:"Part of a GPU's memory that its models may take together (0.9)."`
	Load           *loadFrom `placeholder:"dummy:SEED" help:"Fill the models' shapes with a hash instead of reading weights; their text is token ids in decimal."`
	gpuFlags
	CuBLASLt string `name:"cublaslt" env:"TRCTL_CUBLASLT" placeholder:"FILE" help:"cuBLASLt library to use instead of searching."`
}

// apply puts the flags that were given over c.
func (f *deviceFlags) apply(c *node.Config) error {
	overwrite(&c.Device, f.Device)
	if len(f.GPUs) > 0 {
		c.GPUs = f.GPUs
	}
	if f.GPUMemory != nil {
		c.GPUMemory = int64(*f.GPUMemory)
	}
	if f.GPUMemoryShare != nil {
		if *f.GPUMemoryShare == 0 {
			return usagef("--gpu-memory-share: 0 leaves no memory")
		}
		c.MemoryShare = *f.GPUMemoryShare
	}
	if f.Load != nil {
		for i := range c.Models {
			c.Models[i].Dummy = f.Load.dummy()
		}
	}
	c.CUDA.NVRTC, c.CUDA.CuBLASLt = f.NVRTC, f.CuBLASLt
	if dir, err := f.cacheDir(); err == nil { // without a home kernels are compiled at every start
		c.CUDA.CubinDir = dir
	}
	return nil
}

// byteSize is a number of bytes: "141GB", "80GiB", "1000000".
type byteSize int64

// UnmarshalText accepts a positive number with an optional unit.
func (b *byteSize) UnmarshalText(text []byte) error {
	number := strings.TrimRight(string(text), "BKMGTbkmgti ")
	unit := strings.ToLower(strings.TrimSpace(string(text)[len(number):]))
	factors := map[string]float64{
		"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
		"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	}
	factor, known := factors[unit]
	v, err := strconv.ParseFloat(number, 64)
	if v *= factor; err != nil || !known || !(v >= 1 && v < math.MaxInt64) {
		return fmt.Errorf("%q is no size such as 141GB or 80GiB", text)
	}
	*b = byteSize(v)
	return nil
}

// loadFrom says where weights come from other than a checkpoint: a seed.
type loadFrom uint64

// UnmarshalText accepts "dummy:SEED".
func (l *loadFrom) UnmarshalText(text []byte) error {
	number, ok := strings.CutPrefix(string(text), "dummy:")
	seed, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil {
		return fmt.Errorf("%q is not of the form dummy:SEED", text)
	}
	*l = loadFrom(seed)
	return nil
}

func (l *loadFrom) dummy() *uint64 {
	if l == nil {
		return nil
	}
	seed := uint64(*l)
	return &seed
}
