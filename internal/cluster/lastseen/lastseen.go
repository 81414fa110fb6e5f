package lastseen

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/wholefile"
)

// File is the name of the file in the node's directory.
const File = "state.last"

// Bounds, in bytes: of the file, of the state in it, of its first line.
const (
	maxFile   = 64 << 20
	maxState  = 256 << 20
	maxHeader = 4 << 10
)

// version is of the file's encoding.
const version = 1

var (
	// ErrNone says that there is no file.
	ErrNone = errors.New("no state was kept")
	// ErrBad says that the file is damaged, of another node or of an unknown version.
	ErrBad = errors.New("the state that was kept cannot be used")
)

// header is the first line of the file. The state follows it, as JSON through gzip.
type header struct {
	V int `json:"v"`
	// Node is whose view it is.
	Node string `json:"node"`
	// Seen is when it was written, by the node's clock.
	Seen time.Time `json:"seen"`
	// SHA256 is of the JSON.
	SHA256 string `json:"sha256"`
}

// Write keeps a state in a directory, in the place of an earlier one.
func Write(dir string, node identity.Name, s *state.State, now time.Time) error {
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("keep the state: %w", err)
	}
	var out bytes.Buffer
	line, err := json.Marshal(header{version, node.String(), now.UTC(), sum(text)})
	if err != nil {
		return fmt.Errorf("keep the state: %w", err)
	}
	out.Write(append(line, '\n'))
	z := gzip.NewWriter(&out)
	_, err = z.Write(text)
	if err = errors.Join(err, z.Close()); err != nil {
		return fmt.Errorf("keep the state: %w", err)
	}
	if out.Len() > maxFile || len(text) > maxState {
		return fmt.Errorf("keep the state: it has %d bytes, which is too much", len(text))
	}
	if err := wholefile.Write(filepath.Join(dir, File), out.Bytes(), 0o600); err != nil {
		return fmt.Errorf("keep the state: %w", err)
	}
	return nil
}

// Read returns the state that a node has kept in a directory, and when that was. The
// errors are ErrNone and ErrBad.
func Read(dir string, node identity.Name) (*state.State, time.Time, error) {
	path := filepath.Join(dir, File)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, time.Time{}, fmt.Errorf("%w: there is no %s", ErrNone, path)
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("%w: %w", ErrBad, err)
	}
	defer func() { _ = f.Close() }() // it was only read
	s, seen, err := decode(f, node)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("%w: %s: %w", ErrBad, path, err)
	}
	return s, seen, nil
}

func decode(r io.Reader, node identity.Name) (*state.State, time.Time, error) {
	in := bufio.NewReaderSize(io.LimitReader(r, maxFile), maxHeader)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("its first line: %w", err)
	}
	var h header
	if err := json.Unmarshal(line, &h); err != nil {
		return nil, time.Time{}, fmt.Errorf("its first line: %w", err)
	}
	switch {
	case h.V != version:
		return nil, time.Time{}, fmt.Errorf("it has version %d, and this build knows %d", h.V, version)
	case h.Node != node.String():
		return nil, time.Time{}, fmt.Errorf("it is of %.300s", h.Node)
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, time.Time{}, err
	}
	text, err := io.ReadAll(io.LimitReader(z, maxState+1))
	switch {
	case err != nil:
		return nil, time.Time{}, err
	case len(text) > maxState:
		return nil, time.Time{}, fmt.Errorf("the state has more than %d bytes", maxState)
	case sum(text) != h.SHA256:
		return nil, time.Time{}, errors.New("its SHA-256 is not the one that was noted")
	}
	s := new(state.State)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, time.Time{}, err
	}
	if err := s.Check(); err != nil {
		return nil, time.Time{}, err
	}
	if own, ok := s.Cluster(); !ok || own.ID != node.Cluster {
		return nil, time.Time{}, errors.New("it is of another cluster")
	}
	return s, h.Seen, nil
}

func sum(text []byte) string {
	h := sha256.Sum256(text)
	return hex.EncodeToString(h[:])
}
