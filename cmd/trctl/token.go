package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/near"
)

type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Make a join token. It is shown this once."`
	List   tokenListCmd   `cmd:"" help:"List the join tokens, without their secrets."`
	Revoke tokenRevokeCmd `cmd:"" help:"Have a token admit nobody any more."`
}

type tokenCreateCmd struct {
	operatorFlags
	outputFlags
	Role    string        `required:"" env:"TRCTL_TOKEN_ROLE" placeholder:"ROLE" help:"What it admits: control, worker, gateway, or admin."`
	TTL     time.Duration `name:"ttl" env:"TRCTL_TOKEN_TTL" default:"1h" placeholder:"D" help:"How long it admits (${default})."`
	Uses    int           `env:"TRCTL_TOKEN_USES" default:"1" placeholder:"N" help:"How many it admits (${default})."`
	Comment string        `env:"TRCTL_TOKEN_COMMENT" placeholder:"TEXT" help:"For people."`
	Expires expiryTime    `name:"identity-expires" env:"TRCTL_TOKEN_IDENTITY_EXPIRES" placeholder:"WHEN" help:"With --role admin: when the identities end that it admits, as 90d or 2027-01-31 (never)."`
}

// Run makes the token. Text output has the token alone on standard output, for scripts.
func (t *tokenCreateCmd) Run(ctx context.Context, p process) error {
	role := cluster.Role(t.Role)
	if !role.Valid() {
		var names []string
		for _, r := range cluster.Roles() {
			names = append(names, string(r))
		}
		hint := ""
		if meant := near.Word(t.Role, names); meant != "" {
			hint = fmt.Sprintf("; did you mean %q?", meant)
		}
		return usagef("--role: %q is not one of %s%s", t.Role, strings.Join(names, ", "), hint)
	}
	if t.TTL <= 0 || t.Uses < 1 {
		return usagef("--ttl and --uses must be positive")
	}
	identityExpires := t.Expires.from(time.Now())
	if !identityExpires.IsZero() && role != cluster.Admin {
		return usagef("--identity-expires is for --role admin")
	}
	return t.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		token, object, err := c.CreateToken(ctx, operator.TokenRequest{
			Role: role, Life: t.TTL, Uses: t.Uses, Comment: t.Comment, IdentityExpires: identityExpires,
		})
		if err != nil {
			return err
		}
		known := listing.Facts{Now: time.Now()}
		if t.Output == "json" || t.Output == "yaml" {
			return t.write(p.out, struct {
				Text string `json:"token"`
				listing.Token
			}{token.Reveal(), known.TokenOf(&object)}, nil)
		}
		fmt.Fprintf(p.err, "Join token %s: %s, until %s. It is shown this once.\n",
			object.ID, uses(object.Uses, role), object.Expires.Local().Format(time.DateTime))
		fmt.Fprintf(p.err, "Give it by --token-file or TRCTL_TOKEN to: %s\n", joinCommand(role))
		_, err = fmt.Fprintln(p.out, token.Reveal())
		return err
	})
}

func uses(n int, role cluster.Role) string {
	if n == 1 {
		return fmt.Sprintf("it admits one %s", role)
	}
	return fmt.Sprintf("it admits %d of the role %s", n, role)
}

// joinCommand is the command by which a node of a role joins.
func joinCommand(role cluster.Role) string {
	switch role {
	case cluster.Control:
		return "trctl cluster join ADDR"
	case cluster.Admin:
		return "trctl cluster admin join ADDR"
	}
	return fmt.Sprintf("trctl %s join --join ADDR", role)
}

type tokenListCmd struct {
	operatorFlags
	outputFlags
}

func (t *tokenListCmd) Run(ctx context.Context, p process) error {
	return t.list(ctx, p, &t.outputFlags, listing.Tokens, "")
}

type tokenRevokeCmd struct {
	operatorFlags
	ID string `arg:"" help:"The token's id, as trctl cluster token list shows it."`
}

func (t *tokenRevokeCmd) Run(ctx context.Context, p process) error {
	return t.revoke(ctx, p, cluster.KindRevokeToken, "Join token", t.ID)
}
