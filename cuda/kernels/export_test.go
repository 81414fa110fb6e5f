package kernels

import (
	"context"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// LoadFor is Load with what a device of another architecture gets.
func LoadFor(ctx context.Context, device *driver.Context, b Builder, d Dims, arch string) (*Set, error) {
	return load(ctx, device, b, d, nil, arch)
}
