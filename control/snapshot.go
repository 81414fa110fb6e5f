package control

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
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// Bounds of snapshots, in bytes. A snapshot goes to another control node without a
// word back, so it must stay below the transport's cap.
const (
	maxSnapshot = maxUnanswered - 1<<20
	maxState    = cluster.MaxBackup
	maxHeader   = 1 << 10
)

// snapshotVersion is of the encoding of snapshots and backups.
const snapshotVersion = 1

// ErrSnapshot says that a snapshot or a backup is damaged or of an unknown version.
var ErrSnapshot = errors.New("control: bad snapshot")

// snapshotHeader is the first line of a snapshot. The state follows it, as JSON
// through gzip.
type snapshotHeader struct {
	V int `json:"v"`
	// SHA256 is of the JSON.
	SHA256 string `json:"sha256"`
}

func writeSnapshot(w io.Writer, s *state.State) error {
	out, err := encodeSnapshot(s)
	if err != nil {
		return err
	}
	if out.Len() > maxSnapshot {
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed; %s", ErrSnapshot, out.Len(), maxSnapshot, whatToDelete)
	}
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	return nil
}

// encodeSnapshot encodes a state, whatever its size as a snapshot.
func encodeSnapshot(s *state.State) (*bytes.Buffer, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the state: %w", err)
	}
	if len(text) > maxState {
		return nil, fmt.Errorf("%w: the state has %d bytes, at most %d are allowed; %s", ErrSnapshot, len(text), maxState, whatToDelete)
	}
	header, err := json.Marshal(snapshotHeader{snapshotVersion, sum(text)})
	if err != nil {
		return nil, fmt.Errorf("encode the snapshot's header: %w", err)
	}
	out := new(bytes.Buffer)
	out.Write(append(header, '\n'))
	z := gzip.NewWriter(out)
	_, err = z.Write(text)
	if err = errors.Join(err, z.Close()); err != nil {
		return nil, fmt.Errorf("compress the state: %w", err)
	}
	return out, nil
}

func readSnapshot(r io.Reader) (*state.State, error) {
	in := bufio.NewReaderSize(io.LimitReader(r, maxSnapshot), maxHeader)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("%w: its header: %w", ErrSnapshot, err)
	}
	var header snapshotHeader
	if err := json.Unmarshal(line, &header); err != nil {
		return nil, fmt.Errorf("%w: its header: %w", ErrSnapshot, err)
	}
	if header.V != snapshotVersion {
		return nil, fmt.Errorf("%w: version %d; this build knows %d", ErrSnapshot, header.V, snapshotVersion)
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	text, err := io.ReadAll(io.LimitReader(z, maxState+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return decodeState(text, header.SHA256)
}

// decodeState reads a state whose checksum is known.
func decodeState(text []byte, want string) (*state.State, error) {
	if len(text) > maxState {
		return nil, fmt.Errorf("%w: the state has more than %d bytes", ErrSnapshot, maxState)
	}
	if sum(text) != want {
		return nil, fmt.Errorf("%w: its SHA-256 is not the one that was noted", ErrSnapshot)
	}
	s := new(state.State)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	if s.Written > cluster.Protocol {
		return nil, fmt.Errorf("%w: %w: version %d has written it, and this build speaks %s; use a build that speaks %d",
			ErrSnapshot, client.ErrVersion, s.Written, protocol.Cluster(), s.Written)
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return s, nil
}

func sum(text []byte) string {
	h := sha256.Sum256(text)
	return hex.EncodeToString(h[:])
}

// Backup is a copy of the whole state, with the hashes of keys and tokens but with
// no secret that could be used as it is.
type Backup struct {
	V       int       `json:"v"`
	Cluster string    `json:"cluster"`
	Index   uint64    `json:"index"`
	Made    time.Time `json:"made"`
	// SHA256 is of State, byte for byte.
	SHA256 string          `json:"sha256"`
	State  json.RawMessage `json:"state"`
}

// newBackup encodes a state.
func newBackup(s *state.State, now time.Time) ([]byte, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the state: %w", err)
	}
	own, _ := s.Cluster()
	out, err := json.Marshal(Backup{snapshotVersion, own.ID, s.Index, now.UTC().Truncate(time.Second), sum(text), text})
	if err != nil {
		return nil, fmt.Errorf("encode the backup: %w", err)
	}
	return append(out, '\n'), nil
}

// ParseBackup reads a backup and its state, and checks both.
func ParseBackup(text []byte) (*Backup, *state.State, error) {
	if len(text) > cluster.MaxBackup {
		return nil, nil, fmt.Errorf("%w: the backup has more than %d bytes", ErrSnapshot, cluster.MaxBackup)
	}
	b := new(Backup)
	if err := json.Unmarshal(text, b); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	if b.V != snapshotVersion {
		return nil, nil, fmt.Errorf("%w: version %d; this build knows %d", ErrSnapshot, b.V, snapshotVersion)
	}
	s, err := decodeState(b.State, b.SHA256)
	if err != nil {
		return nil, nil, err
	}
	if own, ok := s.Cluster(); !ok || own.ID != b.Cluster {
		return nil, nil, fmt.Errorf("%w: it says that it is of cluster %q and is not", ErrSnapshot, b.Cluster)
	}
	return b, s, nil
}
