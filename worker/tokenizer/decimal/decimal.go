package decimal

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrText says that a text is no list of ids.
var ErrText = errors.New("the model has no tokenizer: give the prompt as a list of token ids, or as ids in decimal separated by spaces")

// Vocabulary is the ids from 0 up to a size.
type Vocabulary struct{ size int }

// New returns the vocabulary of size ids.
func New(size int) Vocabulary { return Vocabulary{size} }

// Size is the number of ids.
func (v Vocabulary) Size() int { return v.size }

// Fingerprint is equal for vocabularies that can exchange ids.
func (v Vocabulary) Fingerprint() string { return fmt.Sprintf("decimal-%d", v.size) }

// Encode reads ids in decimal, separated by white space. The error is ErrText.
func (v Vocabulary) Encode(text string) ([]int32, error) {
	var ids []int32
	for field := range strings.FieldsSeq(text) {
		id, err := strconv.ParseUint(field, 10, 31)
		if err != nil || int(id) >= v.size {
			return nil, fmt.Errorf("%w (%.20q is not an id below %d)", ErrText, field, v.size)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// TokenBytes is the text of one id, nil for an id outside of the vocabulary.
func (v Vocabulary) TokenBytes(id int32) []byte {
	if id < 0 || int(id) >= v.size {
		return nil
	}
	return strconv.AppendInt([]byte{' '}, int64(id), 10)
}

// Next is the text that an id adds to a stream. It holds nothing back, so a Vocabulary is its own decoder.
func (v Vocabulary) Next(id int32) string { return string(v.TokenBytes(id)) }

// Flush has nothing to give.
func (v Vocabulary) Flush() string { return "" }
