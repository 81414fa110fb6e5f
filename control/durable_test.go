package control

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
)

// faulty is a store whose calls fail with err, if there is one.
type faulty struct {
	stores
	err    error
	writes int
}

func (f *faulty) do() error {
	f.writes++
	return f.err
}

func (f *faulty) StoreLogs([]*raft.Log) error    { return f.do() }
func (f *faulty) DeleteRange(_, _ uint64) error  { return f.do() }
func (f *faulty) Set(_, _ []byte) error          { return f.do() }
func (f *faulty) SetUint64([]byte, uint64) error { return f.do() }
func (f *faulty) GetLog(i uint64, l *raft.Log) error {
	*l = raft.Log{Index: i, Term: 7, Type: raft.LogCommand}
	return f.err
}

// Each call, whether it is one that the library panics at, and what its fault is.
func TestDurable(t *testing.T) {
	full := fmt.Errorf("write raft.db: %w", syscall.ENOSPC)
	for _, test := range []struct {
		name  string
		call  func(*durable) error
		err   error
		want  error // what the node ends with
		quiet bool  // the library hears nothing
	}{
		{"entries", func(d *durable) error { return d.StoreLogs(nil) }, full, ErrDiskFull, false},
		{"entry", func(d *durable) error { return d.StoreLog(new(raft.Log)) }, errors.New("file resize error: no space left on device"), ErrDiskFull, false},
		{"quota", func(d *durable) error { return d.DeleteRange(1, 2) }, syscall.EDQUOT, ErrDiskFull, false},
		{"vote", func(d *durable) error { return d.Set([]byte("LastVoteCand"), nil) }, full, ErrDiskFull, false},
		{"term of a vote", func(d *durable) error { return d.SetUint64([]byte("LastVoteTerm"), 3) }, full, ErrDiskFull, false},
		{"current term", func(d *durable) error { return d.SetUint64([]byte("CurrentTerm"), 3) }, full, ErrDiskFull, true},
		{"other fault", func(d *durable) error { return d.SetUint64([]byte("CurrentTerm"), 3) }, syscall.EIO, ErrDisk, true},
		{"damage", func(d *durable) error { return d.GetLog(4, new(raft.Log)) }, fmt.Errorf("%w: entry 4", ErrCorrupt), ErrCorrupt, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &faulty{}
			var told []error
			d := newDurable(f, "/data", func(err error) { told = append(told, err) })
			if err := test.call(d); err != nil || told != nil {
				t.Fatalf("without a fault: %v, %v", err, told)
			}
			f.err = test.err
			if err := test.call(d); (err == nil) != test.quiet {
				t.Errorf("the library hears %v", err)
			}
			if len(told) != 1 || !errors.Is(told[0], test.want) || !errors.Is(told[0], test.err) {
				t.Fatalf("the node ends with %v", told)
			}
			if errors.Is(test.want, ErrDiskFull) && !strings.Contains(told[0].Error(), "disk full at /data") {
				t.Error(told[0])
			}
			// Nothing is written after that, even if it could be.
			f.err, f.writes = nil, 0
			if err := d.StoreLogs(nil); !errors.Is(err, test.want) || f.writes > 0 || len(told) != 1 {
				t.Errorf("later: %v, %d writes, told %v", err, f.writes, told)
			}
		})
	}
}

// What is not there is no damage, and damage is handed on as an entry that does nothing.
func TestDurableReads(t *testing.T) {
	f := &faulty{err: raft.ErrLogNotFound}
	d := newDurable(f, "/data", func(err error) { t.Errorf("told: %v", err) })
	if err := d.GetLog(1, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
		t.Error(err)
	}
	d.fail = func(error) {}
	f.err = ErrCorrupt
	var l raft.Log
	if err := d.GetLog(4, &l); err != nil || l.Type != raft.LogNoop || l.Index != 4 || l.Term != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}
