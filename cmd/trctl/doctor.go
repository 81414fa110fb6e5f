package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tokenrouter/tokenrouter/internal/doctor"
)

// errUnhealthy says that doctor found something that cannot be used as it is.
var errUnhealthy = errors.New("this machine is not healthy, see above")

// gpuFlags say where the parts that a GPU needs are.
type gpuFlags struct {
	Cache string `placeholder:"DIR" help:"Folder of compiled kernels (a folder of trctl in the user's cache)."`
	NVRTC string `name:"nvrtc" env:"TRCTL_NVRTC" placeholder:"FILE" help:"NVRTC library to use instead of searching."`
}

// cacheDir is the folder of compiled kernels.
func (g *gpuFlags) cacheDir() (string, error) {
	if g.Cache != "" {
		return g.Cache, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", usagef("there is no cache folder, give one by --cache: %w", err)
	}
	return filepath.Join(dir, "trctl", "cubins"), nil
}

type doctorCmd struct {
	gpuFlags
	CuBLASLt string `name:"cublaslt" env:"TRCTL_CUBLASLT" placeholder:"FILE" help:"cuBLASLt library to use instead of searching."`
	Output   string `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
	networkFlags
}

// Run prints what was found and what to install. A machine that is not healthy
// is exit code 1.
func (d *doctorCmd) Run(ctx context.Context, p process) error {
	cache, err := d.cacheDir()
	if err != nil {
		return err
	}
	report := doctor.Run(doctor.ThisMachine(doctor.Config{CacheDir: cache, NVRTCPath: d.NVRTC, CuBLASLtPath: d.CuBLASLt}))
	network, err := d.check(ctx, p)
	if err != nil {
		return err
	}
	report.Checks = append(report.Checks, network...)
	if d.Output == "json" {
		err = report.WriteJSON(p.out)
	} else {
		err = report.WriteText(p.out)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if !report.Healthy() {
		return errUnhealthy
	}
	return nil
}
