package nvrtc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

func openCache(t *testing.T, cfg CacheConfig) *Cache {
	t.Helper()
	c, err := OpenCache(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestKeyOf(t *testing.T) {
	base := KeyOf(addProgram(), "12.9")
	if base != KeyOf(addProgram(), "12.9") {
		t.Fatal("the key is not a function of the program")
	}
	changes := map[string]func(*Program){
		"name":         func(p *Program) { p.Name = "x.cu" },
		"source":       func(p *Program) { p.Source += " " },
		"arch":         func(p *Program) { p.Arch = "sm_90" },
		"header text":  func(p *Program) { p.Headers = map[string]string{"add.cuh": addHeader + " "} },
		"header name":  func(p *Program) { p.Headers = map[string]string{"add2.cuh": addHeader} },
		"no header":    func(p *Program) { p.Headers = nil },
		"define":       func(p *Program) { p.Defines = map[string]string{"SCALE": "3.0f"} },
		"option":       func(p *Program) { p.Options = []string{"-lineinfo"} },
		"moved border": func(p *Program) { p.Name, p.Source = p.Name+p.Source[:1], p.Source[1:] },
		"two options":  func(p *Program) { p.Options = []string{"-a", "-b"} },
		"one option":   func(p *Program) { p.Options = []string{"-a-b"} },
	}
	seen := map[Key]string{base: "base", KeyOf(addProgram(), "13.0"): "version"}
	for name, change := range changes {
		p := addProgram()
		change(&p)
		k := KeyOf(p, "12.9")
		if other, dup := seen[k]; dup {
			t.Errorf("%s has the key of %s", name, other)
		}
		seen[k] = name
	}
}

func TestCacheRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	c := openCache(t, CacheConfig{Dir: dir})
	k := Key{1}
	if _, ok := c.Get(k); ok {
		t.Error("found in an empty cache")
	}
	want := Binary{Cubin: []byte{1, 2, 3}, Log: "warning: x"}
	if err := c.Put(k, want); err != nil {
		t.Fatal(err)
	}
	got, ok := c.Get(k)
	if !ok || !bytes.Equal(got.Cubin, want.Cubin) || got.Log != want.Log {
		t.Errorf("got %v %v", got, ok)
	}
	ro := openCache(t, CacheConfig{Dir: dir, ReadOnly: true})
	if _, ok := ro.Get(k); !ok {
		t.Error("read-only cache does not find it")
	}
	if err := ro.Put(Key{2}, want); !errors.Is(err, ErrCacheReadOnly) {
		t.Errorf("got %v", err)
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 {
		t.Errorf("%d files, %v", len(list), err)
	}
}

func TestCacheVersions(t *testing.T) {
	c := openCache(t, CacheConfig{Dir: t.TempDir()})
	for _, version := range []string{"12.9", "13.0", "12.10", "13.0"} {
		if err := c.noteVersion(version); err != nil {
			t.Fatal(err)
		}
	}
	for _, stray := range []string{"nvrtc-", "nvrtc-x.y", "nvrtc-9999.1", "other"} {
		if err := os.WriteFile(filepath.Join(c.Dir(), stray), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Versions()
	if err != nil || !slices.Equal(got, []string{"13.0", "12.10", "12.9"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if err := c.Put(Key{1}, Binary{Cubin: []byte{1}}); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Len(); err != nil || n != 1 {
		t.Errorf("%d entries, %v", n, err)
	}
}

func TestCacheDamaged(t *testing.T) {
	c := openCache(t, CacheConfig{Dir: t.TempDir()})
	k := Key{7}
	if err := c.Put(k, Binary{Cubin: []byte("cubin"), Log: "log"}); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(c.path(k))
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x40
		if err := os.WriteFile(c.path(k), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok := c.Get(k); ok {
			t.Fatalf("a flipped bit in byte %d was not noticed", i)
		}
		if _, err := os.Stat(c.path(k)); err == nil {
			t.Fatalf("the damaged file is still there")
		}
	}
	for n := range good {
		if _, err := decodeEntry(good[:n], k); err == nil {
			t.Fatalf("an entry cut to %d bytes was accepted", n)
		}
	}
	if _, err := decodeEntry(append(bytes.Clone(good), 0), k); err == nil {
		t.Error("a longer entry was accepted")
	}
	if _, err := decodeEntry(good, Key{8}); err == nil {
		t.Error("an entry of another key was accepted")
	}
}

func TestCacheBounded(t *testing.T) {
	dir := t.TempDir()
	entry := Binary{Cubin: make([]byte, 1000)}
	data, err := encodeEntry(entry, Key{})
	if err != nil {
		t.Fatal(err)
	}
	c := openCache(t, CacheConfig{Dir: dir, MaxBytes: int64(3 * len(data))})
	old := time.Now().Add(-2 * time.Hour)
	for i := range 3 {
		k := Key{byte(i)}
		if err := c.Put(k, entry); err != nil {
			t.Fatal(err)
		}
		stamp := old.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(c.path(k), stamp, stamp); err != nil {
			t.Fatal(err)
		}
	}
	left := filepath.Join(dir, tempPrefix+"left")
	if err := errors.Join(os.WriteFile(left, nil, 0o600), os.Chtimes(left, old, old)); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Get(Key{0}); !ok { // makes entry 0 the newest
		t.Fatal("entry 0 is missing")
	}
	if err := c.Put(Key{9}, entry); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[Key]bool{{0}: true, {1}: false, {2}: true, {9}: true} {
		if _, ok := c.Get(k); ok != want {
			t.Errorf("entry %d: present %v, want %v", k[0], ok, want)
		}
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("a temporary file left behind was kept")
	}
}

func TestCacheUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]CacheConfig{
		"no folder": {}, "negative size": {Dir: t.TempDir(), MaxBytes: -1}, "under a file": {Dir: filepath.Join(file, "x")},
		"missing, read-only": {Dir: filepath.Join(t.TempDir(), "missing"), ReadOnly: true},
	} {
		if _, err := OpenCache(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCacheShared(t *testing.T) {
	dir := t.TempDir()
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			c, err := OpenCache(CacheConfig{Dir: dir, MaxBytes: 20_000})
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 25 {
				k := Key{byte(i % 10)}
				want := []byte(fmt.Sprintf("%01000d", i%10))
				if err := c.Put(k, Binary{Cubin: want}); err != nil {
					t.Errorf("goroutine %d: %v", g, err)
				}
				if got, ok := c.Get(k); ok && !bytes.Equal(got.Cubin, want) {
					t.Errorf("goroutine %d read what nobody wrote", g)
				}
			}
		})
	}
	group.Wait()
}

func FuzzDecodeEntry(f *testing.F) {
	k := Key{3}
	good, err := encodeEntry(Binary{Cubin: []byte("cubin"), Log: "log"}, k)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte(entryMagic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := decodeEntry(data, k)
		if err != nil {
			return
		}
		again, err := encodeEntry(b, k)
		if err != nil || !bytes.Equal(again, data) {
			t.Errorf("decoded %x, which encodes as %x", data, again)
		}
	})
}

func FuzzUsage(f *testing.F) {
	f.Add("ptxas info : Compiling entry function 'a' for 'sm_90'\nptxas info : Used 8 registers, 4 bytes smem\n")
	f.Add("Used 99999999999999999999 registers")
	f.Fuzz(func(t *testing.T, log string) {
		for _, u := range (Binary{Log: log}).Usage() {
			if u.Registers < 0 || u.SpillStoreBytes < 0 {
				t.Errorf("negative: %+v", u)
			}
		}
	})
}
