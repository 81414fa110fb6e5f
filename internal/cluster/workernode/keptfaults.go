package workernode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/wholefile"
)

// faultsFile is the file in the node's directory with the faults that the cluster has not taken:
// the process may end before it does, often by the fault itself, and the next one must not use
// the GPU. It is there only while there are such faults.
const faultsFile = "faults.untold"

// Bounds of the file: bytes, and faults.
const maxFaultsFile, maxKeptFaults = 256 << 10, 64

// keptFault is a fault in the file.
type keptFault struct {
	cluster.Quarantine
	// Request is the command's, so that it is not obeyed again after a release.
	Request string `json:"request"`
}

// keeping is what the file has.
type keeping struct {
	mu   sync.Mutex // held while it is written
	text []byte
}

// keepFaults brings the file in line with the faults that the cluster has not taken.
func (n *Node) keepFaults() {
	if n.cfg.Dir == "" {
		return
	}
	k := &n.ward.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []keptFault
	for _, p := range n.unreported() {
		list = append(list, keptFault{p.Quarantine, p.request})
	}
	var text []byte
	if len(list) > 0 {
		var err error
		if text, err = json.Marshal(list[:min(len(list), maxKeptFaults)]); err != nil {
			n.cfg.Log.Warn("the fault of a GPU is not kept for the next process", "err", err)
			return
		}
	}
	if bytes.Equal(text, k.text) {
		return
	}
	path, err := filepath.Join(n.cfg.Dir, faultsFile), error(nil)
	if text == nil {
		err = os.Remove(path)
	} else {
		err = wholefile.Write(path, text, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.cfg.Log.Warn("the faults that the cluster has not taken are not kept for the next process", "file", path, "err", err)
	}
	k.text = text // a file that cannot be written is told of once
}

// recallFaults takes over what a process before this one has kept.
func (n *Node) recallFaults() {
	if n.cfg.Dir == "" {
		return
	}
	path := filepath.Join(n.cfg.Dir, faultsFile)
	text, err := readFaults(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	list, derr := decodeFaults(text)
	if err = errors.Join(err, derr); err != nil {
		n.cfg.Log.Warn("faults of GPUs that an earlier process has kept cannot be read; they are not known here", "file", path, "err", err)
	}
	n.ward.kept.text = text
	n.ward.mu.Lock()
	defer n.ward.mu.Unlock()
	for _, f := range list {
		f.Node = n.name
		n.ward.pending[f.GPU] = &pendingFault{Quarantine: f.Quarantine, times: 1, request: f.Request}
		n.cfg.Log.Warn("an earlier process has seen a fault of a GPU that the cluster does not know of; it is told now", "uuid", f.GPU, "reason", f.Why(), "seen", f.Seen, "file", path)
	}
	poke(n.ward.unreported)
}

func readFaults(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxFaultsFile+1))
	if err == nil && len(text) > maxFaultsFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxFaultsFile)
	}
	return text, err
}

// decodeFaults reads what keepFaults has written.
func decodeFaults(text []byte) ([]keptFault, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var list []keptFault
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	if len(list) > maxKeptFaults {
		return nil, fmt.Errorf("it has %d faults, expected at most %d", len(list), maxKeptFaults)
	}
	for _, f := range list {
		if f.GPU == "" || len(f.GPU) > cluster.MaxGPUName || f.Request == "" || len(f.Request) > cluster.MaxRequestID || len(f.Reason) > cluster.MaxQuarantineReason {
			return nil, fmt.Errorf("a fault of GPU %.80q has texts that are too long or missing", f.GPU)
		}
	}
	return list, nil
}
