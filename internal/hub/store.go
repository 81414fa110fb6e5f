package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sourcegraph/conc/pool"
)

// Pulled is what Pull or Import has put on disk.
type Pulled struct {
	ID     string `json:"id"`
	Commit string `json:"commit"`
	Dir    string `json:"dir"`
	// Files have their SHA-256 now. Fetched counts those that were not there before.
	Files   []File `json:"files"`
	Bytes   int64  `json:"bytes"`
	Fetched int    `json:"fetched"`
}

// Pull downloads a model to a plain directory or, if dir is empty, into a cache in the
// layout of the hub's own tools: blobs by digest, and snapshots of links to them.
func (c *Client) Pull(ctx context.Context, id ID, cache, dir string) (*Pulled, error) {
	l, err := c.List(ctx, id)
	if err != nil {
		return nil, err
	}
	root := dir
	if dir == "" {
		root = folder(cache, id)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(filepath.Join(root, ".trctl.lock"))
	if err != nil {
		return nil, fmt.Errorf("hub: %s is in use by another download: %w", root, err)
	}
	defer unlock()
	out := &Pulled{ID: id.Owner + "/" + id.Name, Commit: l.Commit, Dir: dir}
	if dir == "" {
		out.Dir = filepath.Join(root, "snapshots", l.Commit)
	}
	fetched := make([]bool, len(l.Files))
	turns := turnsOf(l.Files)
	p := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError().WithMaxGoroutines(c.cfg.Files)
	for i := range l.Files {
		p.Go(func(ctx context.Context) error {
			f := &l.Files[i]
			path := filepath.Join(out.Dir, f.Name)
			if dir == "" {
				turns[i].Lock()
				defer turns[i].Unlock()
				path = filepath.Join(root, "blobs", f.etag())
			}
			if err := ensureDir(path); err != nil {
				return err
			}
			sum, fresh, err := c.fetchFile(ctx, id, l.Commit, f, path)
			if err != nil {
				return err
			}
			fetched[i] = fresh
			if dir == "" {
				if err := link(filepath.Join(out.Dir, f.Name), filepath.Join("..", "..", "blobs", f.etag())); err != nil {
					return err
				}
			}
			f.SHA256 = sum
			return nil
		})
	}
	if err := p.Wait(); err != nil {
		return nil, err
	}
	for i, f := range l.Files {
		out.Bytes += f.Size
		if fetched[i] {
			out.Fetched++
		}
	}
	out.Files = l.Files
	if dir == "" {
		return out, writeRef(root, id.Revision, l.Commit)
	}
	return out, nil
}

// turnsOf gives files of the same content one lock: they are one blob in a cache, which
// the first of them brings and the others find.
func turnsOf(files []File) []*sync.Mutex {
	byDigest := map[string]*sync.Mutex{}
	out := make([]*sync.Mutex, len(files))
	for i := range files {
		of := files[i].etag()
		if byDigest[of] == nil {
			byDigest[of] = new(sync.Mutex)
		}
		out[i] = byDigest[of]
	}
	return out
}

// folder is a model's place in a cache.
func folder(cache string, id ID) string {
	return filepath.Join(cache, "models--"+id.Owner+"--"+id.Name)
}

// link makes a symbolic link, over one that is there.
func link(path, target string) error {
	if err := ensureDir(path); err != nil {
		return err
	}
	if have, err := os.Readlink(path); err == nil && have == target {
		return nil
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, fresh); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// writeRef notes which commit a revision is, once all of it is there.
func writeRef(root, revision, commit string) error {
	path := filepath.Join(root, "refs", filepath.FromSlash(revision))
	if err := ensureDir(path); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", []byte(commit), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Find returns the directory of a model in a cache, fs.ErrNotExist if it is not there.
func Find(cache string, id ID) (string, error) {
	root := folder(cache, id)
	commit := id.Revision
	if text, err := os.ReadFile(filepath.Join(root, "refs", filepath.FromSlash(id.Revision))); err == nil {
		commit = strings.TrimSpace(string(text))
	}
	dir := filepath.Join(root, "snapshots", commit)
	if !hexDigest(commit, 40) {
		return "", fmt.Errorf("%s is not in the cache %s: %w", id, cache, fs.ErrNotExist)
	}
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
		return "", fmt.Errorf("%s is not in the cache %s: %w", id, cache, fs.ErrNotExist)
	}
	return dir, nil
}

// Import puts a model that is on disk into a cache, as Pull would, without a network.
// Its commit is a digest of the files' digests.
func Import(ctx context.Context, from, cache string, id ID) (*Pulled, error) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil, err
	}
	root := folder(cache, id)
	blobs := filepath.Join(root, "blobs")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(filepath.Join(root, ".trctl.lock"))
	if err != nil {
		return nil, fmt.Errorf("hub: %s is in use by another download: %w", root, err)
	}
	defer unlock()
	l := &Listing{}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if wanted(e.Name()) {
			l.Files = append(l.Files, File{Name: e.Name()})
		}
	}
	if err := l.complete(names); err != nil {
		return nil, fmt.Errorf("import %s: %w", from, err)
	}
	out := &Pulled{ID: id.Owner + "/" + id.Name}
	for i := range l.Files {
		f := &l.Files[i]
		if err := importFile(ctx, filepath.Join(from, f.Name), blobs, f); err != nil {
			return nil, fmt.Errorf("import %s: %w", f.Name, err)
		}
		out.Bytes += f.Size
		out.Fetched++
	}
	out.Commit, out.Files = commitOf(l.Files), l.Files
	out.Dir = filepath.Join(root, "snapshots", out.Commit)
	for _, f := range l.Files {
		if err := link(filepath.Join(out.Dir, f.Name), filepath.Join("..", "..", "blobs", f.SHA256)); err != nil {
			return nil, err
		}
	}
	return out, writeRef(root, id.Revision, out.Commit)
}

// importFile copies a file to its blob and fills in size and digest.
func importFile(ctx context.Context, from, blobs string, f *File) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return fmt.Errorf("it is no regular file: %w", err)
	}
	out, err := os.CreateTemp(blobs, "import-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(out.Name()))
		}
	}()
	sum := newSum()
	f.Size, err = io.Copy(io.MultiWriter(out, sum), &reader{ctx, in})
	if err = errors.Join(err, out.Chmod(0o644), out.Close()); err != nil {
		return err
	}
	f.SHA256 = sum.hex()
	return os.Rename(out.Name(), filepath.Join(blobs, f.SHA256))
}
