package engine

import (
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// Inventory describes GPUs by their ordinals; none means all. A machine without a driver
// or a device has none, which is an error only if some were asked for.
func Inventory(ordinals []int) ([]cluster.GPU, error) {
	d, err := driver.Load()
	if err != nil || d.DeviceCount() == 0 {
		if len(ordinals) == 0 && (err == nil || errors.Is(err, driver.ErrNoDriver) || errors.Is(err, driver.ErrNoDevice)) {
			return nil, nil
		}
		if err == nil {
			err = driver.ErrNoDevice
		}
		return nil, fmt.Errorf("GPUs: %w", err)
	}
	if len(ordinals) == 0 {
		for i := range d.DeviceCount() {
			ordinals = append(ordinals, i)
		}
	}
	var list []cluster.GPU
	for _, i := range ordinals {
		g, err := describeGPU(d, i)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		list = append(list, g)
	}
	return list, nil
}

func describeGPU(d *driver.Driver, ordinal int) (cluster.GPU, error) {
	g := cluster.GPU{Ordinal: ordinal}
	v, err := d.Device(ordinal)
	if err != nil {
		return g, err
	}
	if g.Name, err = v.Name(); err != nil {
		return g, err
	}
	if g.UUID, err = v.UUID(); err != nil {
		return g, err
	}
	memory, err := v.TotalMemory()
	g.Memory = int64(memory)
	return g, err
}
