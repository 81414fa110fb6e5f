package pickle

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// File is an open file of torch.save.
type File struct {
	// Root is what was saved.
	Root Value
	// from opens the bytes of a storage.
	from func(*storage) (io.ReadCloser, error)
	// left is how many bytes of storages may still be read: tensors may share one, and
	// each reads all of it.
	left int64
}

// maxReading is how many times the file's size may be read in all.
const maxReading = 4

// maxDirectory bounds what is read to open an archive: its directory, mostly.
const maxDirectory = 16 << 20

// Open reads what a file of size bytes builds, without the bytes of its tensors. r
// must stay open while they are read.
func Open(r io.ReaderAt, size int64) (*File, error) {
	begin := make([]byte, min(size, 4))
	if _, err := r.ReadAt(begin, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if bytes.Equal(begin, []byte("PK\x03\x04")) {
		return openArchive(r, size)
	}
	return openLegacy(r, size)
}

// budget is an io.ReaderAt for so many bytes.
type budget struct {
	io.ReaderAt
	left int64 // negative for no bound
}

func (b *budget) ReadAt(p []byte, at int64) (int, error) {
	if b.left >= 0 {
		if b.left -= int64(len(p)); b.left < 0 {
			b.left = 0
			return 0, corrupt("its directory has more than %d bytes", maxDirectory)
		}
	}
	return b.ReaderAt.ReadAt(p, at)
}

// openArchive reads the format since PyTorch 1.6: an uncompressed zip archive with
// NAME/data.pkl and NAME/data/KEY.
func openArchive(r io.ReaderAt, size int64) (*File, error) {
	limited := &budget{r, maxDirectory}
	archive, err := zip.NewReader(limited, size)
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		return nil, err
	}
	limited.left = -1
	entries, folder := map[string]*zip.File{}, ""
	for _, e := range archive.File {
		if _, twice := entries[e.Name]; twice {
			return nil, corrupt("the entry %.80q twice", e.Name)
		}
		entries[e.Name] = e
		if name, found := strings.CutSuffix(e.Name, "/data.pkl"); found && !strings.Contains(name, "/") {
			if folder != "" {
				return nil, corrupt("two programs, in %.80q and in %.80q", folder, name)
			}
			folder = name
		}
	}
	if folder == "" {
		return nil, corrupt("no data.pkl: it was not written by torch.save")
	}
	if order, ok := entries[folder+"/byteorder"]; ok {
		text, err := content(order, 64)
		if err != nil {
			return nil, err
		}
		if string(text) != "little" {
			return nil, refused("byte order %.20q", text)
		}
	}
	program, err := content(entries[folder+"/data.pkl"], maxProgram)
	if err != nil {
		return nil, err
	}
	f := &File{left: maxReading * size, from: func(s *storage) (io.ReadCloser, error) {
		e, ok := entries[folder+"/data/"+s.key]
		if !ok {
			return nil, corrupt("the storage %q is missing", s.key)
		}
		return open(e, uint64(s.elems)*uint64(s.dtype.Size()), uint64(size))
	}}
	f.Root, _, err = run(program, map[string]*storage{})
	if err != nil {
		return nil, fmt.Errorf("data.pkl: %w", err)
	}
	return f, nil
}

// open opens an entry of a known size, in a file of so many bytes.
func open(e *zip.File, size, file uint64) (io.ReadCloser, error) {
	if e.Method != zip.Store || e.CompressedSize64 != e.UncompressedSize64 {
		return nil, refused("the entry %.80q is compressed, which torch.save never does", e.Name)
	}
	if e.UncompressedSize64 != size || size > file {
		return nil, corrupt("the entry %.80q has %d bytes, expected %d", e.Name, e.UncompressedSize64, size)
	}
	return e.Open()
}

// content reads a small entry.
func content(e *zip.File, limit uint64) (_ []byte, err error) {
	if e.UncompressedSize64 > limit {
		return nil, corrupt("the entry %.80q has %d bytes, expected at most %d", e.Name, e.UncompressedSize64, limit)
	}
	in, err := open(e, e.UncompressedSize64, limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	return readAll(in, int(e.UncompressedSize64))
}

// readAll reads n bytes and the end behind them, where an archive's sum is checked.
func readAll(in io.Reader, n int) ([]byte, error) {
	out := make([]byte, n)
	if _, err := io.ReadFull(in, out); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if k, err := in.Read(make([]byte, 1)); k != 0 || !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more bytes than expected: %w", ErrCorrupt, err)
	}
	return out, nil
}

// legacyMagic begins files of torch.save before PyTorch 1.6.
const legacyMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"

// openLegacy reads the older format: five programs (a magic number, a version, sizes of
// the writer's types, what was saved, the keys of the storages) and then, for each key,
// the number of elements and the elements.
func openLegacy(r io.ReaderAt, size int64) (*File, error) {
	text := make([]byte, min(size, maxProgram))
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, size), text); err != nil {
		return nil, err
	}
	if len(text) < 16 || !bytes.Contains(text[:16], []byte(legacyMagic)) {
		return nil, corrupt("it was not written by torch.save")
	}
	storages := map[string]*storage{}
	var parts [5]Value
	at := 0
	for i := range parts {
		v, n, err := run(text[at:], storages)
		if err != nil {
			return nil, fmt.Errorf("program %d of %d: %w", i+1, len(parts), err)
		}
		parts[i], at = v, at+n
	}
	if parts[0] != Value(Long(legacyMagic)) || parts[1] != Value(int64(1001)) {
		return nil, refused("version %s", show(parts[1]))
	}
	if system, ok := parts[2].(*Dict); !ok || system.values["little_endian"] != Value(true) {
		return nil, refused("another byte order")
	}
	keys, ok := parts[4].(*List)
	if !ok || len(keys.Items) > maxTensors {
		return nil, corrupt("the keys of its storages are %T", parts[4])
	}
	places, err := legacyPlaces(r, size, int64(at), keys.Items, storages)
	if err != nil {
		return nil, err
	}
	return &File{Root: parts[3], left: maxReading * size, from: func(s *storage) (io.ReadCloser, error) {
		at, ok := places[s.key]
		if !ok {
			return nil, corrupt("the storage %q is missing", s.key)
		}
		return io.NopCloser(io.NewSectionReader(r, at, int64(s.elems)*int64(s.dtype.Size()))), nil
	}}, nil
}

// legacyPlaces finds where the storages lie, which follow each other from at on.
func legacyPlaces(r io.ReaderAt, size, at int64, keys []Value, storages map[string]*storage) (map[string]int64, error) {
	places := map[string]int64{}
	for _, k := range keys {
		key, ok := k.(string)
		s := storages[key]
		if _, twice := places[key]; !ok || s == nil || twice {
			return nil, corrupt("the storage %s is unknown or there twice", show(k))
		}
		var count [8]byte
		if _, err := r.ReadAt(count[:], at); err != nil {
			return nil, fmt.Errorf("%w: storage %q: %w", ErrCorrupt, key, err)
		}
		at += int64(len(count))
		if n := binary.LittleEndian.Uint64(count[:]); n != uint64(s.elems) {
			return nil, corrupt("the storage %q has %d elements, expected %d", key, n, s.elems)
		}
		places[key] = at
		if at += int64(s.elems) * int64(s.dtype.Size()); at > size {
			return nil, corrupt("the file ends in the storage %q", key)
		}
	}
	return places, nil
}

// Read brings a tensor into memory, row-major, under a name. One goroutine at a time.
func (f *File) Read(name string, t *Tensor) (_ model.Tensor, err error) {
	in, err := f.from(t.store)
	if err != nil {
		return model.Tensor{}, fmt.Errorf("tensor %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	size := t.DType.Size()
	if f.left -= int64(t.store.elems) * int64(size); f.left < 0 {
		return model.Tensor{}, fmt.Errorf("tensor %s: %w", name, corrupt("tensors share their storages too much"))
	}
	all, err := readAll(in, t.store.elems*size)
	if err != nil {
		return model.Tensor{}, fmt.Errorf("tensor %s: %w", name, err)
	}
	out := model.Tensor{Name: name, DType: t.DType, Shape: t.Shape}
	elems, dense := 1, true
	for i := len(t.Shape) - 1; i >= 0; i-- {
		dense = dense && (t.stride[i] == elems || t.Shape[i] <= 1)
		elems *= t.Shape[i]
	}
	if dense {
		out.Bytes = all[t.offset*size:][: elems*size : elems*size]
		if elems < t.store.elems {
			out.Bytes = bytes.Clone(out.Bytes) // and the rest can go
		}
		return out, nil
	}
	out.Bytes = make([]byte, 0, elems*size)
	at := make([]int, len(t.Shape))
	for range elems {
		from := t.offset
		for i, x := range at {
			from += x * t.stride[i]
		}
		out.Bytes = append(out.Bytes, all[from*size:][:size]...)
		for i := len(at) - 1; i >= 0; i-- {
			if at[i]++; at[i] < t.Shape[i] {
				break
			}
			at[i] = 0
		}
	}
	return out, nil
}
