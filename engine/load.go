package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/models/catalogue"
	"github.com/tokenrouter/tokenrouter/worker/model"
	modelpair "github.com/tokenrouter/tokenrouter/worker/pair"
	"github.com/tokenrouter/tokenrouter/worker/router"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/chat"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/decimal"
)

// ErrWeights says that a model's weights are not there: it is neither embedded
// nor a directory, and no dummy weights were asked for.
var ErrWeights = errors.New("no weights")

// loaded is a model with everything that its replicas share.
type loaded struct {
	cfg        Model
	config     model.Config
	checkpoint *model.Checkpoint    // nil for a dummy model
	tokenizer  *tokenizer.Tokenizer // nil for a dummy model
	template   *chat.Template       // nil if there is none
	// words is set for a model without a tokenizer.
	words       subservice.Vocabulary
	vocab       int
	fingerprint string // of the vocabulary
	stopIDs     []int32
	place       place
	nets        []*router.Net // that score its tokens
	// summary is what other processes need to know of its tokenizer.
	summary func() (*cluster.Words, error)
}

// load opens one model.
func load(cfg Model) (*loaded, error) {
	m, err := describe(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Dummy != nil {
		return m, nil
	}
	if cfg.Dir != "" {
		m.checkpoint, err = model.OpenDir(cfg.Dir)
	} else {
		files, _ := models.FS(cfg.Name) // describe has seen that it is there
		m.checkpoint, err = model.OpenFS(files, cfg.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", cfg.where(), err)
	}
	if err := m.checkpoint.Check(); err != nil {
		return nil, errors.Join(fmt.Errorf("model %s: %w", cfg.where(), err), m.checkpoint.Close())
	}
	m.config, m.stopIDs = m.checkpoint.Config, m.checkpoint.Generation.EOS
	return m, nil
}

// describe learns everything of a model but its weights.
func describe(cfg Model) (*loaded, error) {
	m := &loaded{cfg: cfg}
	m.summary = sync.OnceValues(m.summarize)
	learn := m.fromCatalogue
	if files := m.files(); files != nil {
		learn = func() error { return m.fromFiles(files) }
	}
	if err := learn(); err != nil {
		return nil, fmt.Errorf("model %s: %w", cfg.where(), err)
	}
	return m, nil
}

// where is the model's name with the directory that was given for it.
func (m *Model) where() string {
	if m.Dir == "" {
		return m.Name
	}
	return m.Name + " in " + m.Dir
}

// files is the directory of a model, nil for one that only the catalogue has.
func (m *loaded) files() fs.FS {
	if m.cfg.Dir != "" {
		return os.DirFS(m.cfg.Dir)
	}
	if files, embedded := models.FS(m.cfg.Name); embedded {
		return files
	}
	return nil
}

func (m *loaded) fromCatalogue() error {
	all, err := catalogue.Default()
	if err != nil {
		return err
	}
	entry, err := all.Find(m.cfg.Name)
	if err != nil {
		return fmt.Errorf("it is neither a directory, nor embedded (%s), nor in the catalogue (%s)",
			strings.Join(models.Names(), ", "), strings.Join(all.Names(), ", "))
	}
	if m.cfg.Dummy == nil {
		return fmt.Errorf("%w: the catalogue has its shape only; give the directory of %s, or ask for dummy weights", ErrWeights, entry.Hub)
	}
	if m.config, err = model.ParseConfig(entry.Config); err != nil {
		return err
	}
	m.useDecimal(entry.RealVocab)
	return nil
}

// maxConfigFile bounds config.json.
const maxConfigFile = 1 << 20

func (m *loaded) fromFiles(files fs.FS) error {
	f, err := files.Open("config.json")
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfigFile))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if m.config, err = model.ParseConfig(text); err != nil {
		return err
	}
	words, err := tokenizer.Load(files)
	if m.cfg.Dummy != nil && errors.Is(err, fs.ErrNotExist) {
		m.useDecimal(m.config.VocabSize)
		return nil
	}
	if err != nil {
		return err
	}
	if size, rows := words.Size(), m.config.VocabSize; size > rows {
		return fmt.Errorf("tokenizer.json has ids up to %d, but config.json has vocab_size %d", size-1, rows)
	}
	if m.cfg.Dummy != nil {
		m.useDecimal(words.Size())
		return nil
	}
	m.tokenizer, m.vocab, m.fingerprint = words, words.Size(), words.Fingerprint()
	if m.template, err = chat.Load(files); err != nil && !errors.Is(err, chat.ErrNoTemplate) {
		return err
	}
	return nil
}

// useDecimal is for a model whose text is ids. Its answers end at their bound: ids
// that nobody trained must not end them.
func (m *loaded) useDecimal(size int) {
	words := decimal.New(size)
	m.words, m.vocab, m.fingerprint = decimals{words}, size, words.Fingerprint()
}

// decimals is decimal.Vocabulary as sub-services know vocabularies.
type decimals struct{ decimal.Vocabulary }

func (d decimals) NewDecoder(bool) subservice.Decoder { return d.Vocabulary }

// close releases the weights' files.
func (m *loaded) close() error {
	if m.checkpoint == nil {
		return nil
	}
	return m.checkpoint.Close()
}

// maxShown bounds the differences that an error lists.
const maxShown = 4

// checkPair refuses models that cannot write one answer together: a token id
// must mean the same text, and end an answer, on all of them. What differs
// without harm, because the entry model's rules alone count, is in notes.
func checkPair(deployment string, group []*loaded, mapped map[string][]string) (notes []string, err error) {
	first := group[0]
	for _, m := range group[1:] {
		if mapped[m.cfg.Name] != nil {
			continue
		}
		both := first.cfg.Name + " and " + m.cfg.Name
		if first.tokenizer == nil || m.tokenizer == nil {
			if first.fingerprint != m.fingerprint {
				return nil, fmt.Errorf("deployment %s: %s have different vocabularies: %s and %s", deployment, both, first.vocabulary(), m.vocabulary())
			}
			continue
		}
		r := compare(first, m)
		if why := r.Refusal(maxShown); why != "" {
			sizes := fmt.Sprintf("%d ids", first.vocab)
			if first.vocab != m.vocab {
				sizes = fmt.Sprintf("%d ids and %d", first.vocab, m.vocab)
			}
			return nil, fmt.Errorf("deployment %s: %s cannot write one answer together; their vocabularies have %s:\n%s", deployment, both, sizes, why)
		}
		for _, d := range r.Notes(modelpair.KindTemplate, modelpair.KindBegin) {
			notes = append(notes, both+": "+d.String())
		}
	}
	return notes, nil
}

// compare finds what differs between two models with tokenizers.
func compare(a, b *loaded) *modelpair.Report {
	side := func(m *loaded) *modelpair.Side {
		return modelpair.Of(m.cfg.Name, m.tokenizer, m.template, m.stopIDs, m.config.MaxContext)
	}
	return modelpair.Check(side(a), side(b), nil)
}

// vocabulary names a vocabulary.
func (m *loaded) vocabulary() string {
	if m.tokenizer == nil {
		return fmt.Sprintf("%d token ids without text", m.vocab)
	}
	return fmt.Sprintf("a tokenizer of %d ids", m.vocab)
}
