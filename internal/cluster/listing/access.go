package listing

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Key is an API key as operators see it: without its hash.
type Key struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// State is valid, revoked or expired.
	State             string     `json:"state"`
	Created           time.Time  `json:"created"`
	Expires           *time.Time `json:"expires,omitempty"`
	Models            []string   `json:"models,omitempty"`
	Policies          []string   `json:"policies,omitempty"`
	RequestsPerMinute int64      `json:"requests_per_minute,omitempty"`
	TokensPerMinute   int64      `json:"tokens_per_minute,omitempty"`
	Concurrency       int        `json:"concurrency,omitempty"`
}

// States of keys and tokens.
const (
	valid   = "valid"
	revoked = "revoked"
	expired = "expired"
	used    = "used"
)

// KeyOf is a key without its hash.
func (f *Facts) KeyOf(k *cluster.Key) Key {
	out := Key{
		ID: k.ID, Name: k.Name, State: valid, Created: k.Created, Models: k.Models, Policies: k.Policies,
		RequestsPerMinute: k.RequestsPerMinute, TokensPerMinute: k.TokensPerMinute, Concurrency: k.Concurrency,
	}
	if !k.Expires.IsZero() {
		out.Expires = &k.Expires
		if f.Now.After(k.Expires) {
			out.State = expired
		}
	}
	if k.Revoked {
		out.State = revoked
	}
	return out
}

func (f *Facts) keys() Table {
	var list []Key
	for _, k := range f.State.AllKeys() {
		list = append(list, f.KeyOf(&k))
	}
	type c = column[Key]
	return table(Keys, list, []c{
		{title: "ID", text: func(k *Key) string { return k.ID }},
		{title: "NAME", text: func(k *Key) string { return dash(k.Name) }},
		{title: "STATE", text: func(k *Key) string { return k.State }},
		{title: "AGE", live: true, text: func(k *Key) string { return f.ago(k.Created) }},
		{title: "EXPIRES", live: true, text: func(k *Key) string {
			if k.Expires == nil {
				return "never"
			}
			return f.until(*k.Expires)
		}},
		{title: "MODELS", text: func(k *Key) string { return all(k.Models) }},
		{title: "POLICIES", wide: true, text: func(k *Key) string { return all(k.Policies) }},
		{title: "REQUESTS/MIN", text: func(k *Key) string { return bound(k.RequestsPerMinute) }},
		{title: "TOKENS/MIN", text: func(k *Key) string { return bound(k.TokensPerMinute) }},
		{title: "CONCURRENCY", wide: true, text: func(k *Key) string { return bound(int64(k.Concurrency)) }},
	})
}

func all(list []string) string {
	if len(list) == 0 {
		return "all"
	}
	return strings.Join(list, ",")
}

func bound(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// until is the time to t.
func (f *Facts) until(t time.Time) string {
	if d := t.Sub(f.Now); d > 0 {
		return "in " + span(d)
	}
	return f.ago(t) + " ago"
}

// Operator is an operator's identity.
type Operator struct {
	Name string `json:"name"`
	// State is valid, revoked or expired; unused identities are those whose certificate
	// has ended and was not renewed, so that they must be made anew.
	State   string    `json:"state"`
	Created time.Time `json:"created"`
	// Expires is when the identity ends, Until its certificate.
	Expires *time.Time `json:"expires,omitempty"`
	Until   time.Time  `json:"certificate_until"`
	Token   string     `json:"token,omitempty"`
}

// unused is the state of an operator whose certificate has ended.
const unused = "unused"

func (f *Facts) operatorOf(o *cluster.Operator) Operator {
	out := Operator{Name: o.Name, State: valid, Created: o.Created, Until: o.Until, Token: o.Token}
	if !o.Expires.IsZero() {
		out.Expires = &o.Expires
	}
	switch {
	case f.State.IsRemoved(o.Name):
		out.State = revoked
	case out.Expires != nil && f.Now.After(*out.Expires):
		out.State = expired
	case f.Now.After(o.Until):
		out.State = unused
	}
	return out
}

// operators are the identities that were noted, and those that were revoked without that.
func (f *Facts) operators() Table {
	var list []Operator
	for _, o := range f.State.AllOperators() {
		list = append(list, f.operatorOf(&o))
	}
	for name, r := range f.State.AllRemoved() {
		if _, noted := f.State.Operator(name); !noted && r.Role == cluster.Admin {
			list = append(list, Operator{Name: name, State: revoked})
		}
	}
	slices.SortFunc(list, func(a, b Operator) int { return strings.Compare(a.Name, b.Name) })
	ago := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return f.ago(t)
	}
	type c = column[Operator]
	return table(Operators, list, []c{
		{title: "NAME", text: func(o *Operator) string { return o.Name }},
		{title: "STATE", text: func(o *Operator) string { return o.State }},
		{title: "AGE", live: true, text: func(o *Operator) string { return ago(o.Created) }},
		{title: "EXPIRES", live: true, text: func(o *Operator) string {
			if o.Expires == nil {
				return "never"
			}
			return f.until(*o.Expires)
		}},
		{title: "CERTIFICATE", live: true, text: func(o *Operator) string {
			if o.Until.IsZero() {
				return "-"
			}
			return f.until(o.Until)
		}},
		{title: "TOKEN", wide: true, text: func(o *Operator) string { return dash(o.Token) }},
	})
}

// Token is a join token as operators see it: without its hash.
type Token struct {
	ID   string       `json:"id"`
	Role cluster.Role `json:"role"`
	// State is valid, revoked, expired or used.
	State   string    `json:"state"`
	Uses    int       `json:"uses_left"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Comment string    `json:"comment,omitempty"`
}

// TokenOf is a token without its hash.
func (f *Facts) TokenOf(t *cluster.Token) Token {
	out := Token{ID: t.ID, Role: t.Role, State: valid, Uses: t.Uses, Created: t.Created, Expires: t.Expires, Comment: t.Comment}
	switch {
	case t.Revoked:
		out.State = revoked
	case f.Now.After(t.Expires):
		out.State = expired
	case t.Uses < 1:
		out.State = used
	}
	return out
}

func (f *Facts) tokens() Table {
	var list []Token
	for _, t := range f.State.AllTokens() {
		list = append(list, f.TokenOf(&t))
	}
	type c = column[Token]
	return table(Tokens, list, []c{
		{title: "ID", text: func(t *Token) string { return t.ID }},
		{title: "ROLE", text: func(t *Token) string { return string(t.Role) }},
		{title: "STATE", text: func(t *Token) string { return t.State }},
		{title: "USES", text: func(t *Token) string { return strconv.Itoa(t.Uses) }},
		{title: "AGE", live: true, text: func(t *Token) string { return f.ago(t.Created) }},
		{title: "EXPIRES", live: true, text: func(t *Token) string { return f.until(t.Expires) }},
		{title: "COMMENT", wide: true, text: func(t *Token) string { return dash(t.Comment) }},
	})
}
