package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/chat"
)

// loaded is a checkpoint with everything that its replicas share.
type loaded struct {
	cfg        Model
	checkpoint *model.Checkpoint
	tokenizer  *tokenizer.Tokenizer
	template   *chat.Template // nil if the checkpoint has none
	stopIDs    []int32
}

// load opens one model: a directory, or an embedded one by name.
func load(cfg Model) (*loaded, error) {
	m := &loaded{cfg: cfg}
	var files fs.FS
	var err error
	if cfg.Dir != "" {
		files = os.DirFS(cfg.Dir)
		m.checkpoint, err = model.OpenDir(cfg.Dir)
	} else {
		var known bool
		if files, known = models.FS(cfg.Name); !known {
			return nil, fmt.Errorf("model %q is neither a directory nor embedded (embedded: %s)", cfg.Name, strings.Join(models.Names(), ", "))
		}
		m.checkpoint, err = model.OpenFS(files, cfg.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", cfg.Name, err)
	}
	if err := m.complete(files); err != nil {
		return nil, fmt.Errorf("model %s: %w", cfg.Name, err)
	}
	return m, nil
}

// complete loads what goes with the weights and checks that it fits them.
func (m *loaded) complete(files fs.FS) error {
	if err := m.checkpoint.Check(); err != nil {
		return err
	}
	var err error
	if m.tokenizer, err = tokenizer.Load(files); err != nil {
		return err
	}
	if size, rows := m.tokenizer.Size(), m.checkpoint.Config.VocabSize; size > rows {
		return fmt.Errorf("tokenizer.json has ids up to %d, but config.json has vocab_size %d", size-1, rows)
	}
	if m.template, err = chat.Load(files); err != nil && !errors.Is(err, chat.ErrNoTemplate) {
		return err
	}
	m.stopIDs = m.checkpoint.Generation.EOS
	return nil
}

// checkPair refuses models that cannot write one answer together: a token id
// must mean the same text, and end an answer, on all of them.
func checkPair(deployment string, group []*loaded) error {
	first := group[0]
	for _, m := range group[1:] {
		if a, b := first.tokenizer.Fingerprint(), m.tokenizer.Fingerprint(); a != b {
			return fmt.Errorf("deployment %s: %s and %s have different vocabularies (tokenizer.json %.12s and %.12s)",
				deployment, first.cfg.Name, m.cfg.Name, a, b)
		}
		if a, b := sorted(first.stopIDs), sorted(m.stopIDs); !slices.Equal(a, b) {
			return fmt.Errorf("deployment %s: %s ends answers with ids %v, %s with %v", deployment, first.cfg.Name, a, m.cfg.Name, b)
		}
	}
	return nil
}

func sorted(ids []int32) []int32 { return slices.Sorted(slices.Values(ids)) }
