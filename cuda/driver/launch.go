package driver

import (
	"fmt"
	"unsafe"
)

// MaxParamBytes is the largest parameter block.
const MaxParamBytes = 4096

// Dim is the extent of a grid, block or cluster in x, y, z.
type Dim [3]uint32

// Launch is the geometry of one launch.
type Launch struct {
	Grid, Block Dim
	// Cluster is zero for none.
	Cluster Dim
	// SharedBytes is the dynamic shared memory of a block.
	SharedBytes uint32
	// PDL is programmatic dependent launch: the kernel may start inside the tail of its predecessor and must execute
	// griddepcontrol.wait before it touches what the predecessor wrote or reads. Never set it for other kernels.
	PDL bool
	// Cooperative guarantees that all blocks are resident, which a grid barrier needs.
	Cooperative bool
}

// X is the extent (x, 1, 1).
func X(x uint32) Dim { return Dim{x, 1, 1} }

// Flags of struct tr_launch.
const (
	launchPDL         = 1
	launchCooperative = 2
	launchCluster     = 4
)

func (l *Launch) flags() uint32 {
	var flags uint32
	if l.PDL {
		flags |= launchPDL
	}
	if l.Cooperative {
		flags |= launchCooperative
	}
	if l.Cluster != (Dim{}) {
		flags |= launchCluster
	}
	return flags
}

// check refuses empty and impossible extents, so that a mistake in a plan is found before the device sees it.
func (l *Launch) check() error {
	threads := uint64(l.Block[0]) * uint64(l.Block[1]) * uint64(l.Block[2])
	if threads == 0 || threads > 1024 || l.Block[0] > 1024 || l.Block[1] > 1024 || l.Block[2] > 64 {
		return fmt.Errorf("%w: block %v", ErrGeometry, l.Block)
	}
	if l.Grid[0] == 0 || l.Grid[1] == 0 || l.Grid[2] == 0 || l.Grid[0] > 1<<31-1 || l.Grid[1] > 65535 || l.Grid[2] > 65535 {
		return fmt.Errorf("%w: grid %v", ErrGeometry, l.Grid)
	}
	if l.Cluster == (Dim{}) {
		return nil
	}
	for i, n := range l.Cluster {
		if n == 0 || l.Grid[i]%n != 0 {
			return fmt.Errorf("%w: cluster %v of grid %v", ErrGeometry, l.Cluster, l.Grid)
		}
	}
	return nil
}

// LaunchWith enqueues one kernel whose only parameter is the struct *params, copied during the call. P has the layout of
// the kernel's parameter struct and holds no Go pointer. The call allocates nothing and is legal during a capture.
func LaunchWith[P any](s *Stream, f *Function, l *Launch, params *P) error {
	return s.LaunchRaw(f, l, unsafe.Pointer(params), uint32(unsafe.Sizeof(*params)))
}

// LaunchRaw is LaunchWith for a block of bytes that starts at params. A kernel without parameter takes nil and 0.
func (s *Stream) LaunchRaw(f *Function, l *Launch, params unsafe.Pointer, bytes uint32) error {
	if err := s.ok(); err != nil {
		return err
	}
	if bytes > MaxParamBytes || f.paramBytes >= 0 && uint32(f.paramBytes) != bytes {
		return fmt.Errorf("launch %s: %w: have %d bytes, kernel takes %d", f.name, ErrParams, bytes, f.paramBytes)
	}
	if err := l.check(); err != nil {
		return fmt.Errorf("launch %s: %w", f.name, err)
	}
	code := s.ctx.driver.table.launch(s.ctx.handle, s.handle, f.handle, l, params, bytes)
	if code == 0 {
		return nil
	}
	return s.ctx.fail("launch "+f.name, code)
}
