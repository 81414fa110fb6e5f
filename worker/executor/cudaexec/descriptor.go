package cudaexec

import (
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
)

// layout is where the arrays of a step's descriptor lie: the same offsets in mapped host memory, where Launch writes them,
// and on the device, where prep puts them.
type layout struct {
	ids, source, pos, owner, patches, items, samples int // byte offsets
	maxPatches, maxItems                             int
	bytes                                            int
}

func descriptorLayout(c *Config) layout {
	l := layout{maxPatches: c.MaxSlots*pagesFor(c.MaxContext, c.PageSize) + c.MaxSlots}
	// A tile has at least one token and adds one item, or as many as it takes partials.
	l.maxItems = c.MaxTokens + c.Partials
	at := int(unsafe.Sizeof(kernels.StepHead{}))
	place := func(offset *int, count int, size uintptr) {
		at = roundUp(at, 256)
		*offset = at
		at += count * int(size)
	}
	place(&l.ids, c.MaxTokens, 4)
	place(&l.source, c.MaxTokens, 4)
	place(&l.pos, c.MaxTokens, 4)
	place(&l.owner, c.MaxTokens, 4)
	place(&l.patches, l.maxPatches, unsafe.Sizeof(kernels.Patch{}))
	place(&l.items, l.maxItems, unsafe.Sizeof(kernels.AttnItem{}))
	place(&l.samples, c.MaxTokens, unsafe.Sizeof(kernels.Sample{}))
	l.bytes = roundUp(at, 256) + 256 // prep reads whole words of 16 bytes
	return l
}

// descriptor is the host's side: a ring of entries in mapped memory, one for each step that may be in flight.
type descriptor struct {
	mem     *driver.HostMem
	entries []entry
	// The adjustments of all samples stay in mapped memory of their own: the device reads each once.
	adjustMem *driver.HostMem
	layout    layout
	adjusts   int // of an entry
}

// entry is the descriptor of one step.
type entry struct {
	head    *kernels.StepHead
	ids     []int32
	source  []int32
	pos     []int32
	owner   []int32
	patches []kernels.Patch
	items   []kernels.AttnItem
	samples []kernels.Sample
	adjusts []kernels.Adjust
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
	d := &descriptor{layout: descriptorLayout(c), adjusts: maxAdjusts(c)}
	l := &d.layout
	var err error
	if d.mem, err = ctx.HostAlloc(uint64(c.Depth*l.bytes), false); err != nil {
		return nil, err
	}
	clear(d.mem.Bytes())
	size := int(unsafe.Sizeof(kernels.Adjust{}))
	if d.adjustMem, err = ctx.HostAlloc(uint64(c.Depth*d.adjusts*size), false); err != nil {
		return nil, joinClose(err, d.mem.Close)
	}
	for i := range c.Depth {
		base := i * l.bytes
		head := view[kernels.StepHead](d.mem, base, 1, &err)
		e := entry{
			ids: view[int32](d.mem, base+l.ids, c.MaxTokens, &err), source: view[int32](d.mem, base+l.source, c.MaxTokens, &err),
			pos: view[int32](d.mem, base+l.pos, c.MaxTokens, &err), owner: view[int32](d.mem, base+l.owner, c.MaxTokens, &err),
			patches: view[kernels.Patch](d.mem, base+l.patches, l.maxPatches, &err),
			items:   view[kernels.AttnItem](d.mem, base+l.items, l.maxItems, &err),
			samples: view[kernels.Sample](d.mem, base+l.samples, c.MaxTokens, &err),
			adjusts: view[kernels.Adjust](d.adjustMem, i*d.adjusts*size, d.adjusts, &err),
		}
		if err != nil {
			return d, err
		}
		e.head = &head[0]
		d.entries = append(d.entries, e)
	}
	return d, nil
}

// close releases what newDescriptor took.
func (d *descriptor) close() error { return joinClose(nil, d.adjustMem.Close, d.mem.Close) }

// results is mapped host memory that publish writes: one flag, and a ring of arrays like the descriptor's.
type results struct {
	mem     *driver.HostMem
	flag    *uint64 // the number of the last finished step, read atomically
	entries []outcome
	// logitRows is how many of a step's first samples may ask for logits.
	logitRows                          int
	statsAt, topAt, hiddenAt, logitsAt int // of the first entry; the flag is at 0
	entryBytes                         int
}

// outcome is what one step published.
type outcome struct {
	stats  []kernels.Stat
	top    []kernels.TopEntry // [samples][MaxTop]
	hidden []float32          // [samples][C]
	logits []float32          // [logitRows][V]
}

// maxLogits bounds the mapped memory for whole rows of logits, which only tests and references ask for.
const maxLogits = 64 << 20

func newResults(ctx *driver.Context, c *Config, hidden int) (*results, error) {
	r := &results{logitRows: min(c.MaxTokens, max(maxLogits/(4*c.Vocab), 1))}
	const flagBytes = 256
	at := flagBytes
	place := func(offset *int, bytes int) {
		*offset = at
		at = roundUp(at+bytes, 256)
	}
	place(&r.statsAt, c.MaxTokens*int(unsafe.Sizeof(kernels.Stat{})))
	place(&r.topAt, c.MaxTokens*kernels.MaxTop*int(unsafe.Sizeof(kernels.TopEntry{})))
	place(&r.hiddenAt, c.MaxTokens*hidden*4)
	place(&r.logitsAt, r.logitRows*c.Vocab*4)
	r.entryBytes = at - flagBytes
	mem, err := ctx.HostAlloc(uint64(flagBytes+c.Depth*r.entryBytes), false)
	if err != nil {
		return nil, err
	}
	r.mem = mem
	flag := view[uint64](mem, 0, 1, &err)
	for i := range c.Depth {
		base := i * r.entryBytes
		r.entries = append(r.entries, outcome{
			stats: view[kernels.Stat](mem, base+r.statsAt, c.MaxTokens, &err), top: view[kernels.TopEntry](mem, base+r.topAt, c.MaxTokens*kernels.MaxTop, &err),
			hidden: view[float32](mem, base+r.hiddenAt, c.MaxTokens*hidden, &err), logits: view[float32](mem, base+r.logitsAt, r.logitRows*c.Vocab, &err),
		})
	}
	if err != nil {
		return nil, joinClose(err, mem.Close)
	}
	r.flag = &flag[0]
	*r.flag = 0
	return r, nil
}
