package tokenizer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"strconv"
)

// FileName is what Load reads.
const FileName = "tokenizer.json"

const configName = "tokenizer_config.json"

// Limits of a tokenizer.json. The largest in use today are near 20 MB.
const (
	maxFileBytes  = 128 << 20
	maxID         = 1<<22 - 1
	maxTokenBytes = 4 << 10
	maxAdded      = 1 << 16
)

var (
	// ErrUnsupported says that tokenizer.json asks for something this package
	// does not do; the text names the field.
	ErrUnsupported = errors.New("tokenizer.json is not supported")
	// ErrCorrupt says that tokenizer.json contradicts itself.
	ErrCorrupt = errors.New("tokenizer.json is not consistent")
)

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// Load reads tokenizer.json of a model's directory, and from tokenizer_config.json
// whether a prompt begins with the id for that.
func Load(fsys fs.FS) (*Tokenizer, error) {
	text, err := readBounded(fsys, FileName, maxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(fsys, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", FileName, err)
	}
	t, err := Parse(text)
	if err != nil {
		return nil, err
	}
	config, err := readBounded(fsys, configName, maxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = t.configure(config)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", configName, err)
	}
	return t, nil
}

// missing explains a directory that has another kind of tokenizer.
func missing(fsys fs.FS, err error) error {
	for _, name := range []string{"tokenizer.model", "vocab.json", "tiktoken.model", "qwen.tiktoken"} {
		if _, other := fs.Stat(fsys, name); other == nil {
			return fmt.Errorf("read %s: %w; there is %s: load it with AutoTokenizer of transformers and save_pretrained, which writes %s",
				FileName, err, name, FileName)
		}
	}
	return fmt.Errorf("read %s: %w", FileName, err)
}

// configure takes add_bos_token of tokenizer_config.json over what tokenizer.json
// says; if the key is absent, nothing changes.
func (t *Tokenizer) configure(text []byte) error {
	var config struct {
		AddBOS *bool           `json:"add_bos_token"`
		BOS    json.RawMessage `json:"bos_token"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	if config.AddBOS == nil {
		return nil
	}
	t.prefix = nil
	if !*config.AddBOS || len(config.BOS) == 0 || string(config.BOS) == "null" {
		return nil
	}
	var token string
	if json.Unmarshal(config.BOS, &token) != nil {
		var object struct{ Content string }
		if err := json.Unmarshal(config.BOS, &object); err != nil {
			return fmt.Errorf("bos_token: %w", err)
		}
		token = object.Content
	}
	id, ok := t.addedID[token]
	if !ok {
		return corrupt("bos_token %q is not among added_tokens", token)
	}
	t.prefix = []int32{id}
	return nil
}

// Parse makes a tokenizer from the text of a tokenizer.json.
func Parse(text []byte) (*Tokenizer, error) {
	file, err := readFile(text)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", FileName, err)
	}
	return build(file)
}

// readBounded reads a file into memory of its size, if the file tells that.
func readBounded(fsys fs.FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var text bytes.Buffer
	if st, err := f.Stat(); err == nil && st.Size() <= limit {
		text.Grow(int(st.Size()) + bytes.MinRead) // ReadFrom wants room behind the end
	}
	if _, err := text.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, err
	}
	if int64(text.Len()) > limit {
		return nil, fmt.Errorf("larger than %d bytes", limit)
	}
	return text.Bytes(), nil
}

func (t *Tokenizer) digest(p *plan, rules []mergeRule) string {
	h := sha256.New()
	hashText(h, "tokenrouter tokenizer 2")
	hashText(h, p.pattern)
	hashText(h, fmt.Sprintf("%s ignore_merges=%t", p.describe(), t.ignoreMerges))
	for id, s := range t.tokens {
		if s != "" {
			hashText(h, strconv.Itoa(id))
			hashText(h, s)
		}
	}
	hashText(h, "merges")
	for _, r := range rules {
		hashText(h, r.left)
		hashText(h, r.right)
	}
	hashText(h, "added")
	for _, a := range t.added {
		hashText(h, fmt.Sprintf("%d %t", a.ID, a.Special))
		hashText(h, a.Text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// hashText hashes s with its length, so that no two lists of texts look alike.
func hashText(h hash.Hash, s string) {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:])
	io.WriteString(h, s)
}
