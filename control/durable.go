package control

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/hashicorp/raft"
)

// ErrDiskFull says that the log could not be written for want of space. The node has
// ended; with room on its disk it goes on from where it was.
var ErrDiskFull = errors.New("control: disk full")

// ErrDisk says that the log could not be written for another reason.
var ErrDisk = errors.New("control: the log cannot be written")

// stores is what the library needs of a store.
type stores interface {
	raft.LogStore
	raft.StableStore
}

// durable stands between the library and the store. The library panics when a term cannot
// be written or a committed entry not be read. Here the first such fault ends the node
// instead: fail is told of it, which must see to it that nothing leaves the node from then
// on and nothing is applied. Only then the library is told that all is well, so that it
// can be shut down in order.
//
// Invariant: what the library believes to be on disk and is not, nobody else hears of.
type durable struct {
	stores
	dir  string
	fail func(error)

	once sync.Once
	// err is set before broken is closed.
	err    error
	broken chan struct{}
}

func newDurable(s stores, dir string, fail func(error)) *durable {
	return &durable{stores: s, dir: dir, fail: fail, broken: make(chan struct{})}
}

// failed notes the first fault and has the node end. Others wait for that.
func (d *durable) failed(err error) {
	d.once.Do(func() {
		d.err = err
		d.fail(err)
		close(d.broken)
	})
}

// write does one write, or none after the first that has failed.
func (d *durable) write(what string, do func() error) error {
	select {
	case <-d.broken:
		return d.err
	default:
	}
	err := do()
	if err == nil {
		return nil
	}
	switch {
	case full(err):
		err = fmt.Errorf("%w at %s (%s: %w); make room and start the node again", ErrDiskFull, d.dir, what, err)
	default:
		err = fmt.Errorf("%w in %s: %s: %w", ErrDisk, d.dir, what, err)
	}
	d.failed(err)
	return err
}

// full says that err is for want of space. The store under ours drops the chain of some
// errors.
func full(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, e) || strings.Contains(err.Error(), e.Error()) {
			return true
		}
	}
	return false
}

// StoreLog implements raft.LogStore.
func (d *durable) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore. Nothing was stored if it fails; the library answers
// with its error.
func (d *durable) StoreLogs(logs []*raft.Log) error {
	return d.write("store entries", func() error { return d.stores.StoreLogs(logs) })
}

// DeleteRange implements raft.LogStore.
func (d *durable) DeleteRange(first, last uint64) error {
	return d.write("delete entries", func() error { return d.stores.DeleteRange(first, last) })
}

// Set implements raft.StableStore. The library gives no vote if it fails.
func (d *durable) Set(key, value []byte) error {
	return d.write("store a vote", func() error { return d.stores.Set(key, value) })
}

// SetUint64 implements raft.StableStore. The term of a vote may fail as in Set; with any
// other number, which is the current term, the library would panic.
func (d *durable) SetUint64(key []byte, value uint64) error {
	err := d.write("store a term", func() error { return d.stores.SetUint64(key, value) })
	if err != nil && string(key) == "CurrentTerm" {
		return nil
	}
	return err
}

// GetLog implements raft.LogStore. For an entry that is damaged the library, which would
// panic, gets one that does nothing.
func (d *durable) GetLog(index uint64, l *raft.Log) error {
	err := d.stores.GetLog(index, l)
	if err == nil || errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	d.failed(err)
	*l = raft.Log{Index: index, Type: raft.LogNoop}
	return nil
}
