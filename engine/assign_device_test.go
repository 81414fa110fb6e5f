package engine

import (
	"errors"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec"
)

// A GPU that is spoiled for the process ends an engine that is told what to run too: the
// replica's placement cannot be served by trying again.
func TestSpoiledGPUOfAssigned(t *testing.T) {
	opened := make(chan struct{}, 16)
	cfg := Defaults()
	fake := simulated(t, &cfg, 8<<30, opened)
	cfg.Models, cfg.Deployments, cfg.GPUs = nil, nil, nil
	cfg.KVTokens, cfg.Network = 4096, newNetwork()
	open := cfg.openDevice
	cfg.openDevice = func(ordinal int) (*cudaexec.Device, error) {
		d, err := open(ordinal)
		fake.Fault(0, driver.CodeIllegalAddress)
		return d, err
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(1)
	e.Assign(Assignment{Placements: []Placement{{Name: "s", Generation: 1, Model: Model{Name: "tiny-s", Dummy: &seed}, GPUs: []int{0}}}})
	<-e.closing
	if err := e.Close(); !errors.Is(err, ErrDeviceLost) {
		t.Errorf("the engine ended with %v, want ErrDeviceLost", err)
	} else if errors.Is(err, cudaexec.ErrContext) {
		fake.Leaky() // a context that cannot be opened keeps what it held
	}
}
