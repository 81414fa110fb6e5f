package control

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

// raft, its bolt store and memberlist must build together: this file imports all of
// them. The store is held at v2.3.0, because v2.3.1 does not build beside the others
// (store.go says why).
func TestStoreVersion(t *testing.T) {
	var (
		_ raft.LogStore     = (*store)(nil)
		_ raft.StableStore  = (*store)(nil)
		_ memberlist.Config // same go-metrics as raft
	)
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for module, want := range map[string]string{
		"github.com/hashicorp/raft-boltdb/v2": "v2.3.0", "github.com/hashicorp/raft": "v1.8.0",
		"github.com/hashicorp/memberlist": "v0.7.0", "go.etcd.io/bbolt": "v1.5.0",
	} {
		got := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(module) + ` (\S+)`).FindSubmatch(text)
		if got == nil || string(got[1]) != want {
			t.Errorf("%s is at %q, want %s", module, got, want)
		}
	}
}

func entries(n int) (out []*raft.Log) {
	for i := range n {
		out = append(out, &raft.Log{Index: uint64(i + 1), Term: 1, Type: raft.LogCommand, Data: bytes.Repeat([]byte{byte('a' + i)}, 100)})
	}
	return out
}

// What was stored comes back, and the caller's entries are left alone.
func TestStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := openStore(dir, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	logs := entries(5)
	if err := s.StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
	if logs[0].Extensions != nil {
		t.Error("the entry of the caller was changed")
	}
	if _, err := openStoreShortly(dir); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("open twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = openStore(dir, true, nil); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for _, want := range logs {
		var got raft.Log
		if err := s.GetLog(want.Index, &got); err != nil || !bytes.Equal(got.Data, want.Data) || got.Extensions != nil {
			t.Errorf("entry %d: %v %v", want.Index, got, err)
		}
	}
	if err := s.GetLog(9, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("entry that is not there: %v", err)
	}
	// A gap, as a restored backup leaves one, is no damage.
	if err := s.StoreLog(&raft.Log{Index: 9, Term: 2}); err != nil {
		t.Fatal(err)
	}
	if err := s.check(nil); err != nil {
		t.Errorf("with a gap: %v", err)
	}
}

func openStoreShortly(dir string) (*bbolt.DB, error) {
	s, err := openStore(dir, true, nil)
	if err != nil {
		return nil, err
	}
	return nil, s.Close()
}

// A changed byte in an entry, or an entry at another's place, is found at the start.
func TestStoreDamage(t *testing.T) {
	for name, damage := range map[string]func(b *bbolt.Bucket) error{
		"flipped bit": func(b *bbolt.Bucket) error {
			k, v := b.Cursor().Seek([]byte{0, 0, 0, 0, 0, 0, 0, 3})
			i := bytes.Index(v, []byte("ccc"))
			changed := bytes.Clone(v)
			changed[i] ^= 1
			return b.Put(k, changed)
		},
		"moved entry": func(b *bbolt.Bucket) error {
			_, v := b.Cursor().Seek([]byte{0, 0, 0, 0, 0, 0, 0, 3})
			return b.Put([]byte{0, 0, 0, 0, 0, 0, 0, 4}, bytes.Clone(v))
		},
		"cut entry": func(b *bbolt.Bucket) error {
			k, v := b.Cursor().Seek([]byte{0, 0, 0, 0, 0, 0, 0, 3})
			return b.Put(k, bytes.Clone(v[:len(v)/2]))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := openStore(dir, true, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.StoreLogs(entries(5)), s.Close()); err != nil {
				t.Fatal(err)
			}
			db, err := bbolt.Open(filepath.Join(dir, logFile), 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bbolt.Tx) error { return damage(tx.Bucket([]byte("logs"))) })
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
			if _, err := openStore(dir, true, nil); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), logFile) {
				t.Errorf("error %v, want ErrCorrupt with the file", err)
			}
		})
	}
}
