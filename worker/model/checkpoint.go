package model

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/internal/jsonscan"
)

const (
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"

	maxConfig = 1 << 20  // bytes of a configuration file
	maxIndex  = 64 << 20 // bytes of a shard index
	maxShards = 1024
)

// ErrNoTensor says that a checkpoint has no tensor of that name.
var ErrNoTensor = errors.New("no such tensor")

// Checkpoint is an open model. Tensors may be read from several goroutines.
type Checkpoint struct {
	// Name is the directory or the name given to OpenFS, for messages.
	Name       string
	Config     Config
	Generation Generation

	tensors map[string]Tensor
	where   map[string]string // tensor to file
	list    string            // the file that lists the tensors
	release []func() error
}

// opener reads the files of one directory.
type opener struct {
	fsys fs.FS
	// load returns a whole file and how to release it (may be nil).
	load func(name string) ([]byte, func() error, error)
}

// OpenDir opens a model directory. Weights are mapped, not read.
func OpenDir(dir string) (*Checkpoint, error) {
	st, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("open model %s: expected a directory with %s and %s, found a file", dir, configFile, singleFile)
	}
	return open(dir, opener{os.DirFS(dir), func(name string) ([]byte, func() error, error) {
		return mapFile(filepath.Join(dir, name))
	}})
}

// OpenFS opens the model at the root of a file system, such as models.FS gives.
// Weights are read into memory. name is for messages.
func OpenFS(fsys fs.FS, name string) (*Checkpoint, error) {
	return open(name, opener{fsys, func(file string) ([]byte, func() error, error) {
		b, err := fs.ReadFile(fsys, file)
		return b, nil, err
	}})
}

func open(name string, o opener) (_ *Checkpoint, err error) {
	k := &Checkpoint{Name: name, tensors: map[string]Tensor{}, where: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open model %s: %w", name, err), k.Close())
		}
	}()
	b, err := o.small(configFile, maxConfig)
	if err != nil {
		return nil, err
	}
	if k.Config, err = ParseConfig(b); err != nil {
		return nil, err
	}
	k.Generation = Generation{EOS: k.Config.EOS}
	switch b, err = o.small(generationFile, maxConfig); {
	case err == nil:
		if k.Generation, err = ParseGeneration(b, &k.Config); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if err := k.openWeights(o); err != nil {
		return nil, err
	}
	return k, nil
}

// small reads a file of bounded size.
func (o *opener) small(name string, limit int64) ([]byte, error) {
	st, err := fs.Stat(o.fsys, name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > limit {
		return nil, fmt.Errorf("%s: %w: expected a file of at most %d bytes, found %d (%v)", name, ErrCorrupt, limit, st.Size(), st.Mode().Type())
	}
	return fs.ReadFile(o.fsys, name)
}

func (k *Checkpoint) openWeights(o opener) error {
	if _, err := fs.Stat(o.fsys, singleFile); err == nil {
		shard, err := k.openShard(o, singleFile)
		if err != nil {
			return err
		}
		k.tensors, k.list = shard.Tensors, singleFile
		for name := range shard.Tensors {
			k.where[name] = singleFile
		}
		return nil
	}
	b, err := o.small(indexFile, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return noWeights(o.fsys)
	}
	if err != nil {
		return err
	}
	return k.openIndex(o, b)
}

// openIndex opens the shards that an index names and takes from each the
// tensors that the index places there.
func (k *Checkpoint) openIndex(o opener, data []byte) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", indexFile, ErrCorrupt, fmt.Sprintf(format, args...))
	}
	k.list = indexFile
	files, err := k.readIndex(data)
	if err != nil {
		return bad("%v", err)
	}
	if len(files) == 0 {
		return bad("expected 1 to %d files, found 0", maxShards)
	}
	total := 0
	for _, file := range files {
		shard, err := k.openShard(o, file)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: expected %s beside it, found nothing: fetch it again: %w", indexFile, file, fs.ErrNotExist)
		}
		if err != nil {
			return err
		}
		if total += len(shard.Tensors); total > maxTensors {
			return bad("expected at most %d tensors in all files, found more", maxTensors)
		}
		for name, t := range shard.Tensors {
			if k.where[name] == file {
				k.tensors[name] = t
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.where)) {
		if _, ok := k.tensors[name]; !ok {
			return bad("tensor %s: expected in %s, found nothing", name, k.where[name])
		}
	}
	return nil
}

// readIndex fills where, and returns the files in order.
func (k *Checkpoint) readIndex(data []byte) ([]string, error) {
	s, err := jsonscan.New(data)
	if err != nil {
		return nil, err
	}
	names := map[string]string{} // each file's name once
	found := false
	place := func(key []byte) error {
		file, err := s.Bytes(maxName)
		if err != nil {
			return fmt.Errorf("%q: %w", key, err)
		}
		name, known := names[string(file)]
		switch {
		case known:
		case !plainName(string(file)):
			return fmt.Errorf("expected the name of a .safetensors file in the same directory, found %q", file)
		case len(names) == maxShards:
			return fmt.Errorf("expected 1 to %d files, found more", maxShards)
		default:
			name = string(file)
			names[name] = name
		}
		if _, ok := k.where[string(key)]; ok {
			return fmt.Errorf("duplicate name %q", key)
		}
		if len(k.where) == maxTensors {
			return fmt.Errorf("expected at most %d tensors, found more", maxTensors)
		}
		k.where[string(key)] = name
		return nil
	}
	err = s.Object(maxName, func(key []byte) error {
		if string(key) != "weight_map" {
			s.Raw()
			return nil
		}
		if found {
			return errors.New("duplicate name weight_map")
		}
		found = true
		if err := s.Object(maxName, place); err != nil {
			return fmt.Errorf("weight_map: %w", err)
		}
		return nil
	})
	if err == nil && !found {
		err = errors.New("weight_map: expected an object from tensor to file, found nothing")
	}
	return slices.Sorted(maps.Keys(names)), err
}

// plainName reports whether a shard's name stays inside its directory.
func plainName(file string) bool {
	return file == path.Base(file) && filepath.IsLocal(file) && !strings.ContainsAny(file, `/\:`+"\x00") &&
		strings.HasSuffix(file, ".safetensors")
}

func (k *Checkpoint) openShard(o opener, file string) (*Shard, error) {
	data, release, err := o.load(file)
	if err != nil {
		return nil, err
	}
	if release != nil {
		k.release = append(k.release, release)
	}
	return ParseShard(file, data)
}

// noWeights explains a directory without safetensors.
func noWeights(fsys fs.FS) error {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == "adapter_model.safetensors" {
			return fmt.Errorf("%w: expected %s, found %s: an adapter alone; merge it into its model with merge_and_unload of peft, and save that",
				ErrUnsupported, singleFile, e.Name())
		}
		switch path.Ext(e.Name()) {
		case ".bin", ".pt", ".pth":
			return fmt.Errorf("%w: expected %s, found %s: pickled weights can run code and are not read; "+
				"convert them with save_pretrained(..., safe_serialization=True) of transformers", ErrUnsupported, singleFile, e.Name())
		case ".gguf":
			return fmt.Errorf("%w: expected %s, found %s: use the original checkpoint in safetensors that it was made from",
				ErrUnsupported, singleFile, e.Name())
		}
	}
	return fmt.Errorf("expected %s or %s: %w", singleFile, indexFile, fs.ErrNotExist)
}

// Names lists all tensors in order.
func (k *Checkpoint) Names() []string { return slices.Sorted(maps.Keys(k.tensors)) }

// Tensor returns a tensor by its exact name, or ErrNoTensor.
func (k *Checkpoint) Tensor(name string) (Tensor, error) {
	t, ok := k.tensors[name]
	if !ok {
		return Tensor{}, fmt.Errorf("model %s: tensor %s: %w", k.Name, name, ErrNoTensor)
	}
	return t, nil
}

// Bytes returns the size of all tensors.
func (k *Checkpoint) Bytes() int64 {
	n := int64(0)
	for _, t := range k.tensors {
		n += int64(len(t.Bytes))
	}
	return n
}

// Close releases the files. Tensors must not be used afterwards.
func (k *Checkpoint) Close() error {
	var errs []error
	for _, f := range k.release {
		errs = append(errs, f())
	}
	k.release, k.tensors = nil, nil
	return errors.Join(errs...)
}
