package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Key identifies a compiled program: SHA-256 over name, source, headers, options, architecture and NVRTC's version.
type Key [sha256.Size]byte

// String is the key in hexadecimal, which is also its file's name.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// keyFormat is hashed first; it changes when the meaning of the other parts does.
const keyFormat = "trctl cubin key 1"

// KeyOf hashes a program for a version of NVRTC. Every part is hashed with its length, so no two programs share a
// text.
func KeyOf(p Program, version string) Key {
	h := sha256.New()
	write := func(parts ...string) {
		var n [8]byte
		for _, part := range parts {
			binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
			h.Write(n[:])
			io.WriteString(h, part)
		}
	}
	count := func(n int) { write(fmt.Sprint(n)) }
	write(keyFormat, version, p.Name, p.Source, p.Arch)
	arguments := p.arguments()
	count(len(arguments))
	write(arguments...)
	count(len(p.Headers))
	for _, name := range slices.Sorted(maps.Keys(p.Headers)) {
		write(name, p.Headers[name])
	}
	return Key(h.Sum(nil))
}

// CacheConfig says where cubins are kept.
type CacheConfig struct {
	// Dir is the folder, created when it is missing.
	Dir string
	// MaxBytes bounds the folder; the entries used longest ago go first. 0 means 1 GiB.
	MaxBytes int64
	// ReadOnly never writes: neither entries nor their times. A folder that cannot be written is read-only too.
	ReadOnly bool
}

// Cache keeps cubins in a folder, one file each. Several processes may share it. It is safe for concurrent use.
type Cache struct {
	dir      string
	maxBytes int64
	readOnly bool
}

const (
	defaultMaxBytes = 1 << 30
	entrySuffix     = ".cubin"
	tempPrefix      = ".new-"
	versionPrefix   = "nvrtc-"
	// tempAge is how old a temporary file must be to count as left behind by a killed process.
	tempAge = time.Hour
)

// ErrCacheReadOnly means that an entry could not be stored because the folder cannot be written.
var ErrCacheReadOnly = errors.New("cubin cache is read-only")

// OpenCache opens the folder. A folder that can be read and not written is a read-only cache, not an error.
func OpenCache(cfg CacheConfig) (*Cache, error) {
	if cfg.Dir == "" {
		return nil, fmt.Errorf("open cubin cache: no folder given")
	}
	if cfg.MaxBytes < 0 {
		return nil, fmt.Errorf("open cubin cache: negative size %d", cfg.MaxBytes)
	}
	c := &Cache{dir: cfg.Dir, maxBytes: cfg.MaxBytes, readOnly: cfg.ReadOnly}
	if c.maxBytes == 0 {
		c.maxBytes = defaultMaxBytes
	}
	if !c.readOnly {
		if err := os.MkdirAll(c.dir, 0o755); err != nil {
			c.readOnly = true
		}
	}
	if _, err := os.Stat(c.dir); err != nil {
		return nil, fmt.Errorf("open cubin cache: %w", err)
	}
	if !c.readOnly {
		f, err := os.CreateTemp(c.dir, tempPrefix)
		if err != nil {
			c.readOnly = true
			return c, nil
		}
		err = errors.Join(f.Close(), os.Remove(f.Name()))
		if err != nil {
			return nil, fmt.Errorf("open cubin cache: %w", err)
		}
	}
	return c, nil
}

// Dir is the folder.
func (c *Cache) Dir() string { return c.dir }

// ReadOnly reports whether entries cannot be stored.
func (c *Cache) ReadOnly() bool { return c.readOnly }

// Len counts the entries.
func (c *Cache) Len() (int, error) {
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return 0, fmt.Errorf("read cubin cache: %w", err)
	}
	n := 0
	for _, item := range list {
		if strings.HasSuffix(item.Name(), entrySuffix) {
			n++
		}
	}
	return n, nil
}

// Versions lists the NVRTC versions that filled the cache, newest first, so that a machine without the library knows
// what to look for.
func (c *Cache) Versions() ([]string, error) {
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("read cubin cache: %w", err)
	}
	var out []string
	for _, item := range list {
		if version, ok := strings.CutPrefix(item.Name(), versionPrefix); ok && versionNumber(version) > 0 {
			out = append(out, version)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return versionNumber(b) - versionNumber(a) })
	return out, nil
}

// versionNumber is 1000·major + minor of a text such as "12.9", and 0 when it is none.
func versionNumber(text string) int {
	major, minor, _ := strings.Cut(text, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	if errA != nil || errB != nil || a < 0 || a > 999 || b < 0 || b > 999 {
		return 0
	}
	return 1000*a + b
}

// noteVersion leaves a mark that a version of NVRTC has filled the cache.
func (c *Cache) noteVersion(version string) error {
	err := os.WriteFile(filepath.Join(c.dir, versionPrefix+version), nil, 0o644)
	if err != nil {
		return fmt.Errorf("store cubin: %w", err)
	}
	return nil
}

func (c *Cache) path(k Key) string { return filepath.Join(c.dir, k.String()+entrySuffix) }

// Get returns an entry. A missing or damaged file is a miss; a damaged one is removed.
func (c *Cache) Get(k Key) (Binary, bool) {
	f, err := os.Open(c.path(k))
	if err != nil {
		return Binary{}, false
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxEntry+1))
	if err != nil {
		return Binary{}, false
	}
	b, err := decodeEntry(data, k)
	if err != nil {
		if !c.readOnly {
			os.Remove(c.path(k)) // best effort: the next Put replaces it anyway
		}
		return Binary{}, false
	}
	if !c.readOnly {
		now := time.Now()
		os.Chtimes(c.path(k), now, now) // best effort: only the order of eviction depends on it
	}
	return b, true
}

// Put stores an entry under its key, whole or not at all, and then removes what exceeds MaxBytes.
func (c *Cache) Put(k Key, b Binary) error {
	if c.readOnly {
		return ErrCacheReadOnly
	}
	data, err := encodeEntry(b, k)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(c.dir, tempPrefix)
	if err != nil {
		return fmt.Errorf("store cubin: %w", err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), c.path(k))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("store cubin: %w", err), os.Remove(f.Name()))
	}
	return c.trim(k)
}

// trim removes the entries used longest ago until the rest fits, sparing keep, and temporary files left behind.
func (c *Cache) trim(keep Key) error {
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("trim cubin cache: %w", err)
	}
	var entries []fs.FileInfo
	var total int64
	for _, item := range list {
		info, err := item.Info()
		if err != nil {
			continue // another process removed it
		}
		switch {
		case strings.HasPrefix(item.Name(), tempPrefix) && time.Since(info.ModTime()) > tempAge:
			os.Remove(filepath.Join(c.dir, item.Name())) // best effort
		case strings.HasSuffix(item.Name(), entrySuffix) && info.Mode().IsRegular():
			entries = append(entries, info)
			total += info.Size()
		}
	}
	slices.SortFunc(entries, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range entries {
		if total <= c.maxBytes {
			break
		}
		if info.Name() == keep.String()+entrySuffix {
			continue
		}
		if err := os.Remove(filepath.Join(c.dir, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("trim cubin cache: %w", err)
		}
		total -= info.Size()
	}
	return nil
}

// An entry is: magic, key, SHA-256 of the rest, then cubin and log, each after its length (little-endian uint32).
const (
	entryMagic  = "TRCUBIN1"
	entryHeader = len(entryMagic) + len(Key{}) + sha256.Size
	// maxEntry bounds a file, and so what one read allocates.
	maxEntry = 64 << 20
)

// errEntry means that a cache file is not what Put wrote under that key.
var errEntry = errors.New("cache entry is damaged")

func encodeEntry(b Binary, k Key) ([]byte, error) {
	if len(b.Cubin)+len(b.Log)+entryHeader+8 > maxEntry {
		return nil, fmt.Errorf("store cubin: %d bytes exceed the limit of an entry", len(b.Cubin)+len(b.Log))
	}
	payload := binary.LittleEndian.AppendUint32(nil, uint32(len(b.Cubin)))
	payload = append(payload, b.Cubin...)
	payload = binary.LittleEndian.AppendUint32(payload, uint32(len(b.Log)))
	payload = append(payload, b.Log...)
	digest := sha256.Sum256(payload)
	return slices.Concat([]byte(entryMagic), k[:], digest[:], payload), nil
}

func decodeEntry(data []byte, k Key) (Binary, error) {
	if len(data) < entryHeader || len(data) > maxEntry || string(data[:len(entryMagic)]) != entryMagic {
		return Binary{}, errEntry
	}
	rest := data[len(entryMagic):]
	if !bytes.Equal(rest[:len(k)], k[:]) {
		return Binary{}, errEntry
	}
	rest = rest[len(k):]
	payload := rest[sha256.Size:]
	if digest := sha256.Sum256(payload); !bytes.Equal(digest[:], rest[:sha256.Size]) {
		return Binary{}, errEntry
	}
	cubin, payload, ok := cutField(payload)
	if !ok || len(cubin) == 0 {
		return Binary{}, errEntry
	}
	log, payload, ok := cutField(payload)
	if !ok || len(payload) != 0 {
		return Binary{}, errEntry
	}
	return Binary{Cubin: bytes.Clone(cubin), Log: string(log)}, nil
}

// cutField splits off a field that starts with its length.
func cutField(data []byte) (field, rest []byte, ok bool) {
	if len(data) < 4 {
		return nil, nil, false
	}
	n := binary.LittleEndian.Uint32(data)
	data = data[4:]
	if uint64(n) > uint64(len(data)) {
		return nil, nil, false
	}
	return data[:n], data[n:], true
}
