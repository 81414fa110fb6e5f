package kernels

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// BlockStamp mirrors struct BlockStamp of timeline.cuh: when one block of a kernel ran. Times are nanoseconds of the device's
// clock; Waited counts from Began until the block's wait for the kernels before it was over.
type BlockStamp struct {
	Began, Ended              uint64
	Waited, Block, Blocks, SM uint32
}

// timelineBlocks is how many blocks of each module a Timeline has room for, 32 bytes each. A step of one row of Qwen3-32B has
// 409,600 in one module.
const timelineBlocks = 1 << 19

// Timeline reads when the blocks of kernels ran that were loaded with it (LoadTimed, LoadTimedRouter). Such kernels are compiled
// anew, take three registers more, and hold 16 MiB of device memory each. A nil Timeline is none. It is not safe for concurrent use.
type Timeline struct {
	device  *driver.Context
	modules []stamped
	of      map[*driver.Function]int
	// launched hears of each launch in its order.
	launched func(module, blocks int)
}

// stamped is where a module keeps its stamps.
type stamped struct {
	kernel        string
	stamps, count driver.Ptr
	room          int
}

// NewTimeline makes a Timeline for the kernels of a device. launched is told of each of their launches, also of those that are
// captured: which module, by its number in the Timeline, and how many blocks.
func NewTimeline(device *driver.Context, launched func(module, blocks int)) *Timeline {
	return &Timeline{device: device, of: map[*driver.Function]int{}, launched: launched}
}

// stamp makes programs note when their blocks run.
func (t *Timeline) stamp(programs []nvrtc.Program) {
	if t == nil {
		return
	}
	for i := range programs {
		d := maps.Clone(programs[i].Defines) // variants share them
		if d == nil {
			d = map[string]string{}
		}
		d["TIMELINE"] = strconv.Itoa(timelineBlocks)
		programs[i].Defines = d
	}
}

// add finds the stamps of a module that was compiled with stamp, and whose kernel is f.
func (t *Timeline) add(m *driver.Module, f *driver.Function) error {
	if t == nil {
		return nil
	}
	stamps, bytes, err := m.Global("timeline_blocks")
	if err != nil {
		return err
	}
	count, _, err := m.Global("timeline_count")
	if err != nil {
		return err
	}
	t.of[f] = len(t.modules)
	t.modules = append(t.modules, stamped{f.Name(), stamps, count, int(bytes / uint64(unsafe.Sizeof(BlockStamp{})))})
	return nil
}

// note tells of a launch.
func (t *Timeline) note(f *driver.Function, blocks int) {
	if t == nil {
		return
	}
	if i, ok := t.of[f]; ok {
		t.launched(i, blocks)
	}
}

// Kernel is the name of a module's kernel.
func (t *Timeline) Kernel(module int) string { return t.modules[module].kernel }

// Reset enqueues that all stamps are forgotten.
func (t *Timeline) Reset(st *driver.Stream) error {
	var errs []error
	for _, m := range t.modules {
		errs = append(errs, st.Set32(m.count, 0, 1))
	}
	return errors.Join(errs...)
}

// Read returns the stamps of a module, in the order in which blocks began or nearly so, and how many blocks there were, which may
// be more than there was room for. The kernels have ended.
func (t *Timeline) Read(module int) (stamps []BlockStamp, blocks int, err error) {
	m := &t.modules[module]
	var count [1]uint32
	if err := t.device.Read(driver.Bytes(count[:]), m.count); err != nil {
		return nil, 0, fmt.Errorf("count blocks of %s: %w", m.kernel, err)
	}
	stamps = make([]BlockStamp, min(int(count[0]), m.room))
	if err := t.device.Read(driver.Bytes(stamps), m.stamps); err != nil {
		return nil, 0, fmt.Errorf("read stamps of %s: %w", m.kernel, err)
	}
	return stamps, int(count[0]), nil
}
