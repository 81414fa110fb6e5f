package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/apikey"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
)

type keyCmd struct {
	Create keyCreateCmd `cmd:"" help:"Make an API key. It is shown this once."`
	List   keyListCmd   `cmd:"" help:"List the API keys, without their secrets."`
	Revoke keyRevokeCmd `cmd:"" help:"Have a key refused from now on, for good."`
	Delete keyDeleteCmd `cmd:"" help:"Delete keys that are revoked or have expired."`
}

type keyCreateCmd struct {
	operatorFlags
	outputFlags
	Name              string     `env:"TRCTL_KEY_NAME" placeholder:"NAME" help:"What the key is for, for people."`
	Models            []string   `env:"TRCTL_KEY_MODELS" placeholder:"NAME" help:"Models and deployments that it may ask for (all)."`
	Policies          []string   `env:"TRCTL_KEY_POLICIES" placeholder:"NAME" help:"Routing policies that its requests may choose (all that a deployment allows)."`
	RequestsPerMinute int64      `env:"TRCTL_KEY_REQUESTS_PER_MINUTE" placeholder:"N" help:"Most requests a minute, over all gateways (no bound)."`
	TokensPerMinute   int64      `env:"TRCTL_KEY_TOKENS_PER_MINUTE" placeholder:"N" help:"Most tokens a minute, over all gateways (no bound)."`
	Concurrency       int        `env:"TRCTL_KEY_CONCURRENCY" placeholder:"N" help:"Most requests in flight at each gateway (no bound)."`
	Expires           expiryTime `env:"TRCTL_KEY_EXPIRES" placeholder:"WHEN" help:"When it ends: a time from now such as 90d or 12h, or a date such as 2027-01-31 (never)."`
}

// Run makes the key. Text output has the key alone on standard output, for scripts.
func (k *keyCreateCmd) Run(ctx context.Context, p process) error {
	if k.RequestsPerMinute < 0 || k.TokensPerMinute < 0 || k.Concurrency < 0 {
		return usagef("--requests-per-minute, --tokens-per-minute and --concurrency must not be negative")
	}
	return k.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		made, err := c.CreateKey(ctx, operator.KeyRequest{
			Name: k.Name, Expires: k.Expires.from(time.Now()), Models: k.Models, Policies: k.Policies,
			RequestsPerMinute: k.RequestsPerMinute, TokensPerMinute: k.TokensPerMinute, Concurrency: k.Concurrency,
		})
		if err != nil {
			return err
		}
		known := listing.Facts{Now: time.Now()}
		if k.Output == "json" || k.Output == "yaml" {
			return k.write(p.out, struct {
				Text string `json:"key"`
				listing.Key
			}{made.Text, known.KeyOf(&made.Key)}, nil)
		}
		fmt.Fprintf(p.err, "API key %s. It is shown this once: %s revokes it.\n", made.Key.ID, "trctl key revoke "+made.Key.ID)
		_, err = fmt.Fprintln(p.out, made.Text)
		return err
	})
}

type keyListCmd struct {
	operatorFlags
	outputFlags
}

func (k *keyListCmd) Run(ctx context.Context, p process) error {
	return k.list(ctx, p, &k.outputFlags, listing.Keys, "")
}

type keyRevokeCmd struct {
	operatorFlags
	ID string `arg:"" help:"The key's id, as trctl key list shows it; the key itself will do."`
}

func (k *keyRevokeCmd) Run(ctx context.Context, p process) error {
	id := k.ID
	if public, ok := apikey.IDOf(id); ok {
		id = public // so that the secret goes nowhere
	}
	return k.revoke(ctx, p, cluster.KindRevokeKey, "API key", id)
}

type keyDeleteCmd struct {
	operatorFlags
	IDs   []string `arg:"" optional:"" name:"id" help:"The keys' ids."`
	Ended bool     `env:"-" help:"All that are revoked or have expired."`
}

// Run deletes one key after another; the first that cannot be deleted ends it.
func (k *keyDeleteCmd) Run(ctx context.Context, p process) error {
	if k.Ended == (len(k.IDs) > 0) {
		return usagef("give the keys' ids, or --ended")
	}
	return k.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		ids := k.IDs
		if k.Ended {
			known, err := facts(ctx, c)
			if err != nil {
				return err
			}
			for id, key := range known.State.AllKeys() {
				if key.Revoked || !key.Expires.IsZero() && known.Now.After(key.Expires) {
					ids = append(ids, id)
				}
			}
		}
		for _, id := range ids {
			if _, err := c.Propose(ctx, cluster.KindDeleteKey, link.NewRequest("delete"), cluster.Name{Name: id}); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(p.out, "API key %s is deleted.\n", id); err != nil {
				return err
			}
		}
		if len(ids) == 0 {
			_, err := fmt.Fprintln(p.out, "No key is revoked or has expired.")
			return err
		}
		return nil
	})
}

// revoke gives a command about one object.
func (f *operatorFlags) revoke(ctx context.Context, p process, kind cluster.Kind, what, id string) error {
	return f.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		if _, err := c.Propose(ctx, kind, link.NewRequest("revoke"), cluster.Name{Name: id}); err != nil {
			return err
		}
		_, err := fmt.Fprintf(p.out, "%s %s is revoked.\n", what, id)
		return err
	})
}

// expiryTime is when something ends: a time from now, a time, or never (zero).
type expiryTime struct {
	in time.Duration
	at time.Time
}

// UnmarshalText reads 90d, 12h, 2027-01-31, 2027-01-31T12:00:00Z, or never.
func (e *expiryTime) UnmarshalText(text []byte) error {
	*e = expiryTime{}
	word := string(text)
	if word == "never" {
		return nil
	}
	if days, ok := strings.CutSuffix(word, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n <= 36500 {
			e.in = time.Duration(n) * 24 * time.Hour
			return nil
		}
	}
	if d, err := time.ParseDuration(word); err == nil && d > 0 {
		e.in = d
		return nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, word); err == nil {
			e.at = t
			return nil
		}
	}
	return fmt.Errorf("%q is neither a time from now such as 90d or 12h, nor a date such as 2027-01-31, nor never", word)
}

// from is the time that is meant, zero for never.
func (e *expiryTime) from(now time.Time) time.Time {
	if e.in > 0 {
		return now.Add(e.in).UTC().Truncate(time.Second)
	}
	return e.at
}
