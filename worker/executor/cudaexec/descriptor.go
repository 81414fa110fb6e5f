package cudaexec

import (
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
)

// layout is where the arrays of a step's descriptor lie: the same offsets in mapped host memory, where Launch writes them,
// and on the device, where prep puts them.
type layout struct {
	ids, pos, owner, patches, items, combines, samples int // byte offsets
	maxPatches, maxItems, maxCombines                  int
	bytes                                              int
}

func descriptorLayout(c *Config) layout {
	l := layout{maxPatches: c.MaxSlots*pagesFor(c.MaxContext, c.PageSize) + c.MaxSlots, maxCombines: c.Partials}
	// A tile has at least one token and adds one item, or as many as it takes partials.
	l.maxItems = c.MaxTokens + c.Partials
	at := int(unsafe.Sizeof(kernels.StepHead{}))
	place := func(offset *int, count int, size uintptr) {
		at = roundUp(at, 256)
		*offset = at
		at += count * int(size)
	}
	place(&l.ids, c.MaxTokens, 4)
	place(&l.pos, c.MaxTokens, 4)
	place(&l.owner, c.MaxTokens, 4)
	place(&l.patches, l.maxPatches, unsafe.Sizeof(kernels.Patch{}))
	place(&l.items, l.maxItems, unsafe.Sizeof(kernels.AttnItem{}))
	place(&l.combines, l.maxCombines, unsafe.Sizeof(kernels.AttnCombine{}))
	place(&l.samples, c.MaxTokens, unsafe.Sizeof(kernels.Sample{}))
	l.bytes = roundUp(at, 256) + 256 // prep reads whole words of 16 bytes
	return l
}

// descriptor is the host's side: views of one mapped allocation.
type descriptor struct {
	mem      *driver.HostMem
	head     *kernels.StepHead
	ids      []int32
	pos      []int32
	owner    []int32
	patches  []kernels.Patch
	items    []kernels.AttnItem
	combines []kernels.AttnCombine
	samples  []kernels.Sample

	// The adjustments of all samples stay in mapped memory of their own: the device reads each once.
	adjustMem *driver.HostMem
	adjusts   []kernels.Adjust
}

// maxAdjusts bounds the adjusted logits of one step, over all sampled positions.
func maxAdjusts(c *Config) int { return min(c.MaxRows*(c.MaxContext+2048), 1<<20) }

// view is HostSlice with the first error kept.
func view[T any](mem *driver.HostMem, at, count int, err *error) []T {
	s, e := driver.HostSlice[T](mem, uint64(at), uint64(count))
	if *err == nil {
		*err = e
	}
	return s
}

func newDescriptor(ctx *driver.Context, c *Config) (*descriptor, error) {
	l := descriptorLayout(c)
	mem, err := ctx.HostAlloc(uint64(l.bytes), false)
	if err != nil {
		return nil, err
	}
	clear(mem.Bytes())
	d := &descriptor{mem: mem}
	head := view[kernels.StepHead](mem, 0, 1, &err)
	d.ids = view[int32](mem, l.ids, c.MaxTokens, &err)
	d.pos = view[int32](mem, l.pos, c.MaxTokens, &err)
	d.owner = view[int32](mem, l.owner, c.MaxTokens, &err)
	d.patches = view[kernels.Patch](mem, l.patches, l.maxPatches, &err)
	d.items = view[kernels.AttnItem](mem, l.items, l.maxItems, &err)
	d.combines = view[kernels.AttnCombine](mem, l.combines, l.maxCombines, &err)
	d.samples = view[kernels.Sample](mem, l.samples, c.MaxTokens, &err)
	if err == nil {
		d.adjustMem, err = ctx.HostAlloc(uint64(maxAdjusts(c))*uint64(unsafe.Sizeof(kernels.Adjust{})), false)
	}
	if err != nil {
		return nil, joinClose(err, mem.Close)
	}
	d.adjusts = view[kernels.Adjust](d.adjustMem, 0, maxAdjusts(c), &err)
	d.head = &head[0]
	return d, err
}

// results is mapped host memory that publish writes.
type results struct {
	mem    *driver.HostMem
	flag   *uint64 // the number of the last finished step, read atomically
	stats  []kernels.Stat
	top    []kernels.TopEntry // [samples][MaxTop]
	hidden []float32          // [samples][C]
	logits []float32          // [logitRows][V]
	// logitRows is how many of a step's first samples may ask for logits.
	logitRows                                  int
	flagAt, statsAt, topAt, hiddenAt, logitsAt int
}

// maxLogits bounds the mapped memory for whole rows of logits, which only tests and references ask for.
const maxLogits = 64 << 20

func newResults(ctx *driver.Context, c *Config, hidden int) (*results, error) {
	r := &results{logitRows: min(c.MaxTokens, max(maxLogits/(4*c.Vocab), 1))}
	at := 0
	place := func(offset *int, bytes int) {
		*offset = at
		at = roundUp(at+bytes, 256)
	}
	place(&r.flagAt, 8)
	place(&r.statsAt, c.MaxTokens*int(unsafe.Sizeof(kernels.Stat{})))
	place(&r.topAt, c.MaxTokens*kernels.MaxTop*int(unsafe.Sizeof(kernels.TopEntry{})))
	place(&r.hiddenAt, c.MaxTokens*hidden*4)
	place(&r.logitsAt, r.logitRows*c.Vocab*4)
	mem, err := ctx.HostAlloc(uint64(at), false)
	if err != nil {
		return nil, err
	}
	r.mem = mem
	flag := view[uint64](mem, r.flagAt, 1, &err)
	r.stats = view[kernels.Stat](mem, r.statsAt, c.MaxTokens, &err)
	r.top = view[kernels.TopEntry](mem, r.topAt, c.MaxTokens*kernels.MaxTop, &err)
	r.hidden = view[float32](mem, r.hiddenAt, c.MaxTokens*hidden, &err)
	r.logits = view[float32](mem, r.logitsAt, r.logitRows*c.Vocab, &err)
	if err != nil {
		return nil, joinClose(err, mem.Close)
	}
	r.flag = &flag[0]
	*r.flag = 0
	return r, nil
}
