package subservice

// maxTombstones bounds the requests remembered after their end.
const maxTombstones = 4096

// tombstones remember the epoch in which recent requests ended, so that a frame
// that arrives late does not bring one back. The oldest is forgotten first.
type tombstones struct {
	epoch map[uint64]uint32
	order []uint64 // ring
	next  int
}

func newTombstones(size int) *tombstones {
	return &tombstones{epoch: make(map[uint64]uint32, size), order: make([]uint64, 0, size)}
}

// add remembers that a request ended in an epoch.
func (t *tombstones) add(request uint64, epoch uint32) {
	if _, known := t.epoch[request]; known {
		t.epoch[request] = max(t.epoch[request], epoch)
		return
	}
	if len(t.order) < cap(t.order) {
		t.order = append(t.order, request)
	} else {
		delete(t.epoch, t.order[t.next])
		t.order[t.next] = request
		t.next = (t.next + 1) % len(t.order)
	}
	t.epoch[request] = epoch
}

// has reports whether the request has ended in this epoch or a later one.
func (t *tombstones) has(request uint64, epoch uint32) bool {
	e, known := t.epoch[request]
	return known && epoch <= e
}
