package hub

import (
	"bufio"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sourcegraph/conc/pool"
)

// errDisk says that a file could not be written; another try does not help.
var errDisk = errors.New("hub: write")

// fetchFile brings one file to path, unless it is there already. It returns the
// SHA-256 and whether anything was fetched.
func (c *Client) fetchFile(ctx context.Context, id ID, commit string, f *File, path string) (string, bool, error) {
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Size() == f.Size {
		if sum, err := verify(ctx, path, f); err == nil {
			c.cfg.Progress(f.Name, f.Size, f.Size)
			return sum, false, nil
		} else if !errors.Is(err, ErrDigest) {
			return "", false, err
		}
	}
	d, err := c.open(id, commit, f, path)
	if err != nil {
		return "", false, fmt.Errorf("%w: %w", errDisk, err)
	}
	err = d.run(ctx)
	if err = errors.Join(err, d.close()); err != nil {
		return "", false, err
	}
	sum, err := verify(ctx, d.part, f)
	if err != nil {
		if errors.Is(err, ErrDigest) { // start again from nothing next time
			err = errors.Join(err, os.Remove(d.part), os.Remove(d.list))
		}
		return "", false, err
	}
	if err := errors.Join(os.Rename(d.part, path), os.Remove(d.list)); err != nil {
		return "", false, fmt.Errorf("%w: %w", errDisk, err)
	}
	return sum, true, nil
}

// verify compares a file with its digest and returns the SHA-256.
func verify(ctx context.Context, path string, f *File) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	hashes := []io.Writer{sum}
	var blob hash.Hash
	if f.SHA256 == "" {
		blob = sha1.New() // what git names a blob by
		fmt.Fprintf(blob, "blob %d\x00", f.Size)
		hashes = append(hashes, blob)
	}
	n, err := io.Copy(io.MultiWriter(hashes...), &reader{ctx, bufio.NewReaderSize(file, 1<<20)})
	if err != nil {
		return "", err
	}
	got, want := hex.EncodeToString(sum.Sum(nil)), f.SHA256
	if n != f.Size || want != "" && got != want || blob != nil && hex.EncodeToString(blob.Sum(nil)) != f.BlobID {
		return "", fmt.Errorf("%w: %s of %d bytes has SHA-256 %s, expected %d bytes and %s", ErrDigest, f.Name, n, got, f.Size, f.etag())
	}
	return got, nil
}

// reader ends with its context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// download is a file on its way. Ranges that are complete are listed beside it, so
// that a later one goes on from there.
type download struct {
	c          *Client
	path       string // on the hub
	file       *File
	part, list string
	data       *os.File
	done       []bool
	got        atomic.Int64

	mu  sync.Mutex // guards log
	log *os.File
}

func (c *Client) open(id ID, commit string, f *File, path string) (*download, error) {
	d := &download{c: c, file: f, part: path + ".incomplete", list: path + ".ranges",
		path: "/" + id.Owner + "/" + id.Name + "/resolve/" + commit + "/" + f.Name}
	d.done = make([]bool, (f.Size+c.cfg.RangeBytes-1)/c.cfg.RangeBytes)
	var err error
	if d.data, err = os.OpenFile(d.part, os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return nil, err
	}
	head := fmt.Sprintf("%s %d %d\n", f.etag(), f.Size, c.cfg.RangeBytes)
	text, err := os.ReadFile(d.list)
	rest, same := strings.CutPrefix(string(text), head)
	if err != nil || !same {
		rest = ""
		if err := errors.Join(d.data.Truncate(0), os.WriteFile(d.list, []byte(head), 0o644)); err != nil {
			return nil, errors.Join(err, d.data.Close())
		}
	}
	if err := d.data.Truncate(f.Size); err != nil {
		return nil, errors.Join(err, d.data.Close())
	}
	for line := range strings.Lines(rest) {
		if i, err := strconv.Atoi(strings.TrimSuffix(line, "\n")); err == nil && 0 <= i && i < len(d.done) && !d.done[i] && strings.HasSuffix(line, "\n") {
			d.done[i] = true
			d.got.Add(d.size(i))
		}
	}
	if d.log, err = os.OpenFile(d.list, os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return nil, errors.Join(err, d.data.Close())
	}
	return d, nil
}

func (d *download) close() error { return errors.Join(d.data.Close(), d.log.Close()) }

func (d *download) size(i int) int64 {
	return min(d.c.cfg.RangeBytes, d.file.Size-int64(i)*d.c.cfg.RangeBytes)
}

// run fetches the ranges that are missing.
func (d *download) run(ctx context.Context) error {
	d.c.cfg.Progress(d.file.Name, d.got.Load(), d.file.Size)
	p := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError().WithMaxGoroutines(d.c.cfg.Ranges)
	for i, done := range d.done {
		if !done {
			p.Go(func(ctx context.Context) error { return d.fetchRange(ctx, i) })
		}
	}
	if err := p.Wait(); err != nil {
		return fmt.Errorf("fetch %s: %w", d.file.Name, err)
	}
	return nil
}

// fetchRange fetches one range, from where it was cut.
func (d *download) fetchRange(ctx context.Context, i int) error {
	at, end := int64(i)*d.c.cfg.RangeBytes, int64(i)*d.c.cfg.RangeBytes+d.size(i)
	before := at
	gained := func() bool {
		more := at > before
		before = at
		return more
	}
	err := d.c.retry(ctx, gained, func() error {
		n, err := d.copyRange(ctx, at, end)
		at += n
		return err
	})
	if err != nil {
		return err
	}
	if err := d.data.Sync(); err != nil {
		return fmt.Errorf("%w: %w", errDisk, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := fmt.Fprintf(d.log, "%d\n", i); err != nil {
		return fmt.Errorf("%w: %w", errDisk, err)
	}
	return nil
}

// copyRange writes the bytes [at, end) and returns how many came.
func (d *download) copyRange(ctx context.Context, at, end int64) (int64, error) {
	whole := at == 0 && end == d.file.Size
	header := http.Header{}
	if !whole {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", at, end-1))
	}
	resp, err := d.c.get(ctx, d.path, header)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if want := fmt.Sprintf("bytes %d-%d/%d", at, end-1, d.file.Size); !whole && (resp.StatusCode != http.StatusPartialContent || resp.Header.Get("Content-Range") != want) {
		return 0, fmt.Errorf("%w: status %d with range %.60q, expected %q", ErrProtocol, resp.StatusCode, resp.Header.Get("Content-Range"), want)
	}
	n := int64(0)
	buf := make([]byte, 128<<10)
	for at+n < end {
		k, err := resp.Body.Read(buf[:min(int64(len(buf)), end-at-n)])
		if k > 0 {
			if _, err := d.data.WriteAt(buf[:k], at+n); err != nil {
				return n, fmt.Errorf("%w: %w", errDisk, err)
			}
			n += int64(k)
			d.c.cfg.Progress(d.file.Name, d.got.Add(int64(k)), d.file.Size)
		}
		if err != nil && at+n < end {
			return n, fmt.Errorf("cut at byte %d of %s: %w", at+n, d.file.Name, scrubbed(err))
		}
	}
	return n, nil
}

// ensureDir makes the directory of a file.
func ensureDir(path string) error { return os.MkdirAll(filepath.Dir(path), 0o755) }
