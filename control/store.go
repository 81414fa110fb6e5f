package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	// v2.3.0 and no later: v2.3.1 imports the package compat of hashicorp/go-metrics,
	// which is gone in the version that raft v1.8.0 and memberlist v0.7.0 need, and
	// does not build beside them. TestStoreVersion holds it there.
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// ErrCorrupt says that the log on disk is damaged. The node does not start; remove
// it from the cluster, empty its directory and join it again under another name.
var ErrCorrupt = errors.New("control: the log is damaged")

// Names in Config.Dir.
const logFile = "raft.db"

// store is the log and the votes on disk. It keeps a checksum of every entry, which
// the library under it does not.
type store struct {
	*raftboltdb.BoltStore
	path string
}

// openStore opens the log, makes it if need be, and checks every entry. read, which may be
// nil, gets each of them, oldest first.
func openStore(dir string, noSync bool, read func(*raft.Log)) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	path := filepath.Join(dir, logFile)
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: path, NoSync: noSync,
		BoltOptions: &bbolt.Options{Timeout: 2 * time.Second, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, NoSync: noSync},
	})
	if err != nil {
		if errors.Is(err, bbolterrors.ErrTimeout) {
			return nil, fmt.Errorf("control: open %s: another process has it open", path)
		}
		return nil, fmt.Errorf("control: open %s: %w", path, err)
	}
	s := &store{bolt, path}
	if err := s.check(read); err != nil {
		return nil, errors.Join(err, bolt.Close())
	}
	return s, nil
}

// check reads all entries.
func (s *store) check(read func(*raft.Log)) error {
	first, err := s.FirstIndex()
	if err != nil {
		return fmt.Errorf("control: read %s: %w", s.path, err)
	}
	last, err := s.LastIndex()
	if err != nil {
		return fmt.Errorf("control: read %s: %w", s.path, err)
	}
	for i := first; i <= last && i > 0; i++ {
		l := new(raft.Log)
		err := s.GetLog(i, l)
		switch {
		case errors.Is(err, raft.ErrLogNotFound): // a restored backup leaves a gap behind it
		case err != nil:
			return err
		case read != nil:
			read(l)
		}
	}
	return nil
}

// StoreLog stores one entry.
func (s *store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores entries with their checksums. They are on disk when it returns.
func (s *store) StoreLogs(logs []*raft.Log) error {
	summed := make([]*raft.Log, len(logs))
	for i, l := range logs {
		c := *l // the library goes on using its own
		c.Extensions = checksum(l)
		summed[i] = &c
	}
	return s.BoltStore.StoreLogs(summed)
}

// GetLog reads an entry. A wrong checksum is ErrCorrupt.
func (s *store) GetLog(index uint64, l *raft.Log) error {
	if err := s.BoltStore.GetLog(index, l); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) {
			return err
		}
		return fmt.Errorf("%w: %s, entry %d: %w", ErrCorrupt, s.path, index, err)
	}
	if l.Index != index || string(l.Extensions) != string(checksum(l)) {
		return fmt.Errorf("%w: %s, entry %d: its checksum is wrong", ErrCorrupt, s.path, index)
	}
	l.Extensions = nil
	return nil
}

// checksum is CRC-32C of all that matters of an entry.
func checksum(l *raft.Log) []byte {
	var head [17]byte
	binary.LittleEndian.PutUint64(head[0:], l.Index)
	binary.LittleEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	table := crc32.MakeTable(crc32.Castagnoli)
	return binary.LittleEndian.AppendUint32(nil, crc32.Update(crc32.Checksum(head[:], table), table, l.Data))
}
