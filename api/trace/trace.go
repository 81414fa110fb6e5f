package trace

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Path is where parts are asked for, by GET with the query id=REQUEST: the answer is a
// JSON list of parts.
const Path = "/v1/trace"

// MaxVisits bounds the visits of a part.
const MaxVisits = 256

// ErrID says that a text names no request.
var ErrID = errors.New("no request id")

// Part is what one replica remembers of a request in one epoch.
type Part struct {
	// Request is ID's text. Epoch counts the entries that the request had.
	Request    string `json:"request"`
	Epoch      uint32 `json:"epoch"`
	Deployment string `json:"deployment"`
	Model      string `json:"model"`
	Replica    string `json:"replica"`
	// Entry says that the replica owned the request, in this epoch.
	Entry bool `json:"entry,omitempty"`
	// Began is when the request came here, by this machine's clock; Took is until it was
	// forgotten here.
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took_ns"`
	// Queued is the time until it was let in; BatchWait the time for which it was ready
	// and its steps had not begun; Steps the forward passes that it was part of.
	Queued    time.Duration `json:"queued_ns"`
	BatchWait time.Duration `json:"batch_wait_ns"`
	Steps     int           `json:"steps"`
	// Tokens counts those that this replica wrote.
	Tokens int `json:"tokens"`
	// Prompt and Answer count the tokens of both, Cached the prompt's that came from
	// the prefix cache. Only the entry has them.
	Prompt int `json:"prompt_tokens,omitempty"`
	Cached int `json:"cached_tokens,omitempty"`
	Answer int `json:"answer_tokens,omitempty"`
	// End is stop, length, the code of an error, or empty if the replica only had the
	// request on loan.
	End string `json:"end,omitempty"`
	// Visits are the entry's: who had the turn, in order. Dropped counts those beyond
	// MaxVisits, the last ones.
	Visits  []Visit `json:"visits,omitempty"`
	Dropped int     `json:"visits_dropped,omitempty"`
}

// Visit is a turn: a model at a replica, until the turn was somewhere else.
type Visit struct {
	Model   string `json:"model"`
	Replica string `json:"replica"`
	// Hop is the number of the hand-off that gave the turn; Try counts how often the
	// entry had to begin anew because a turn was lost, and hops begin at 0 with each.
	Try uint32 `json:"try,omitempty"`
	Hop uint32 `json:"hop"`
	// From is the time from Part.Began to the hand-off, Took from then to the next; ways
	// are part of it.
	From time.Duration `json:"from_ns"`
	Took time.Duration `json:"took_ns"`
	// Tokens counts the answer's that came to be known in that time.
	Tokens int `json:"tokens"`
}

// Text is a request's id in parts.
func Text(id uint64) string { return fmt.Sprintf("%016x", id) }

// ID reads the id of an answer as clients see it (chatcmpl-…, cmpl-…), or its digits
// alone.
func ID(text string) (uint64, error) {
	digits := text
	for _, prefix := range []string{"chatcmpl-", "cmpl-"} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			digits = rest
			break
		}
	}
	id, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || len(digits) != 16 {
		return 0, fmt.Errorf("%q: %w: it is the answer's, such as chatcmpl-0123456789abcdef", text, ErrID)
	}
	return id, nil
}

// Sort brings the parts of a request in order: by epoch, the entry first.
func Sort(parts []Part) {
	slices.SortStableFunc(parts, func(a, b Part) int {
		entry := func(p *Part) int {
			if p.Entry {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(entry(&a), entry(&b)), a.Began.Compare(b.Began), cmp.Compare(a.Replica, b.Replica))
	})
}

// Handler answers on Path from what find remembers.
func Handler(find func(id uint64) []Part) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := ID(r.URL.Query().Get("id"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(find(id)) // the caller is gone if this fails
	})
}
