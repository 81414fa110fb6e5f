package quota

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// ErrRefused says that the leader gives a key nothing, since it knows no such key.
var ErrRefused = errors.New("quota: the key is not known")

// Lessor gives out slices: the leader, by way of a control node. An error that wraps
// ErrRefused is the leader's word, any other means that none has answered.
type Lessor interface {
	Slice(ctx context.Context, ask cluster.SliceAsk) (cluster.Slice, error)
}

// Rates are what a key may have in a minute; 0 means no bound.
type Rates = cluster.Amount

// Refusal says why a request gets nothing.
type Refusal struct {
	// After is when there is enough for the request, as far as is known: others may give
	// back, or take, something before.
	After time.Duration
	// Requests and Tokens say which rates are known to have less left than the request
	// needs. Neither is set if none is known: the leader does not know the key, or others
	// took what it gave.
	Requests, Tokens bool
}

// Config is what a Book needs.
type Config struct {
	// Gateway is this one's node.
	Gateway string
	Lessor  Lessor
	// Gateways is the number of gateways, for when no leader answers.
	Gateways func() int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Timeout bounds a question to the leader: 500 ms.
	Timeout time.Duration
}

const (
	// alone is for how long a gateway does not ask again after no leader has answered.
	alone = time.Second
	// maxPause is for how long at most it does not ask again after the leader gave too
	// little, and nothing is known of its having more: others may give back at any time.
	maxPause = time.Second
	// bucket is how long spent slices are kept as one, if the leader has not said under
	// which time it has them.
	bucket = 500 * time.Millisecond
	// minRetry is the least time after which a client may try again, and the first of the
	// pauses.
	minRetry = 100 * time.Millisecond
	// maxKeys bounds the keys that are remembered; idle ones go first.
	maxKeys = 16384
)

// Book is one gateway's slices of all keys. It is safe for concurrent use.
type Book struct {
	cfg  Config
	mu   sync.Mutex
	keys map[string]*Account
}

// NewBook returns an empty book.
func NewBook(cfg Config) *Book {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 500 * time.Millisecond
	}
	return &Book{cfg: cfg, keys: map[string]*Account{}}
}

// Account returns the account of a key, whose rates may have changed.
func (b *Book) Account(key string, r Rates) *Account {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.keys[key]
	if a == nil {
		if len(b.keys) >= maxKeys {
			b.forget()
		}
		a = &Account{book: b, key: key}
		b.keys[key] = a
	}
	a.setRates(r)
	return a
}

// forget drops accounts that were given nothing lately, or all if everything is in
// use: slices are lost, never doubled.
func (b *Book) forget() {
	now := b.cfg.Now()
	for key, a := range b.keys {
		if a.idle(now) {
			delete(b.keys, key)
		}
	}
	if len(b.keys) >= maxKeys {
		clear(b.keys)
	}
}

// Tell tells a new leader what this gateway was given of all keys. It ends early with
// ctx, or when nobody answers.
func (b *Book) Tell(ctx context.Context) {
	b.tell(ctx, func(a *Account, now time.Time) bool { return !a.idle(now) })
}

// Return gives back what has lapsed and what requests have not used. It is to be
// called about twice a second, and ends early as Tell does.
func (b *Book) Return(ctx context.Context) {
	b.tell(ctx, func(a *Account, now time.Time) bool { return a.owes(now) })
}

// Leave gives back all that is not used, also what could be for a moment longer. It is to
// be called when there are no requests any more, and ends early as Tell does.
func (b *Book) Leave(ctx context.Context) {
	now := b.cfg.Now()
	b.mu.Lock()
	for _, a := range b.keys {
		a.mu.Lock()
		a.release(now)
		a.mu.Unlock()
	}
	b.mu.Unlock()
	b.Return(ctx)
}

func (b *Book) tell(ctx context.Context, which func(*Account, time.Time) bool) {
	now := b.cfg.Now()
	b.mu.Lock()
	var list []*Account
	for _, a := range b.keys {
		if which(a, now) {
			list = append(list, a)
		}
	}
	b.mu.Unlock()
	for _, a := range list {
		if ctx.Err() != nil || !a.tell(ctx) {
			return
		}
	}
}
