package controlnode

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/apikey"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/plainhttp"
	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
)

// handler serves all calls of the cluster port.
func (n *Node) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/cluster/", n.control.Handler())
	mux.Handle("POST "+operator.PathKeys, n.adminsOnly(http.HandlerFunc(n.createKey)))
	mux.Handle("POST "+operator.PathTrace, n.adminsOnly(http.HandlerFunc(n.serveTrace)))
	return mux
}

// adminsOnly refuses everybody else.
func (n *Node) adminsOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := identity.PeerName(r.TLS)
		switch {
		case err != nil, peer.Role != cluster.Admin, peer.Cluster != n.credentials.Name().Cluster, n.control.View().Removed(peer.Node):
			n.refused.Note(n.cfg.Log, "call refused", unwelcome.Peer(r), cmp.Or(err, fmt.Errorf("%s is for the operators of this cluster", r.URL.Path)), "role", string(peer.Role))
			refuse(w, http.StatusForbidden, client.Problem(client.ErrForbidden))
		case time.Now().After(r.TLS.PeerCertificates[0].NotAfter):
			refuse(w, http.StatusForbidden, client.Problem(fmt.Errorf("%w: the certificate has expired", client.ErrForbidden)))
		default:
			h.ServeHTTP(w, r)
		}
	})
}

func refuse(w http.ResponseWriter, status int, p cluster.Problem) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p) // the caller is gone if this fails
}

// createKey makes an API key. Its text is in the answer alone.
func (n *Node) createKey(w http.ResponseWriter, r *http.Request) {
	made, err := n.newKey(r.Context(), http.MaxBytesReader(w, r.Body, cluster.MaxCall))
	if err != nil {
		n.cfg.Log.Debug("API key not made", "err", err)
		p := client.Problem(err)
		status := http.StatusBadRequest
		switch p.Code {
		case cluster.CodeNoQuorum, cluster.CodeNotLeader:
			status = http.StatusServiceUnavailable
		case cluster.CodeInternal:
			status = http.StatusInternalServerError
			n.cfg.Log.Error("API key not made", "err", err)
		}
		refuse(w, status, p)
		return
	}
	n.cfg.Log.Info("API key made", "key", made.Key.ID)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(made) // the caller is gone if this fails
}

// maxText bounds a text for people, maxChoices a list of what a key may ask for.
const (
	maxText    = 128
	maxChoices = 256
)

var (
	errText    = errors.New("it must have at most 128 bytes, all of printed characters")
	errChoices = errors.New("at most 256 are allowed")
)

// CheckText says what is wrong with a name for people: terminals show it, in a line of
// a table.
func CheckText(field, text string) error {
	odd := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if len(text) > maxText || strings.ContainsFunc(text, odd) {
		return fmt.Errorf("%s %.32q: %w", field, text, errText)
	}
	return nil
}

// checkKey says what is wrong with the request for a key. The state has no such bounds:
// it has keys of older builds.
func checkKey(k *operator.KeyRequest) error {
	if err := CheckText("name", k.Name); err != nil {
		return err
	}
	for _, list := range []struct {
		field string
		names []string
	}{{"models", k.Models}, {"policies", k.Policies}} {
		if len(list.names) > maxChoices {
			return fmt.Errorf("%s: %d names: %w", list.field, len(list.names), errChoices)
		}
		for _, name := range list.names {
			if err := CheckText(list.field, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *Node) newKey(ctx context.Context, body io.Reader) (operator.NewKey, error) {
	var request operator.KeyRequest
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&request); err != nil {
		return operator.NewKey{}, fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	if err := checkKey(&request); err != nil {
		return operator.NewKey{}, fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	text, key, err := apikey.New(n.cfg.Saved.Pepper)
	if err != nil {
		return operator.NewKey{}, err
	}
	now := time.Now().UTC().Truncate(time.Second)
	if !request.Expires.IsZero() && request.Expires.Before(now) {
		return operator.NewKey{}, fmt.Errorf("%w: the key would have expired already", client.ErrBadRequest)
	}
	key.Name, key.Created, key.Expires = request.Name, now, request.Expires
	key.Models, key.Policies = request.Models, request.Policies
	key.RequestsPerMinute, key.TokensPerMinute, key.Concurrency = request.RequestsPerMinute, request.TokensPerMinute, request.Concurrency
	command, err := cluster.NewCommand(cluster.KindPutKey, link.NewRequest("key"), now, key)
	if err != nil {
		return operator.NewKey{}, err
	}
	if _, err := n.control.Propose(ctx, command); err != nil {
		return operator.NewKey{}, err
	}
	return operator.NewKey{Text: text, Key: key}, nil
}

// serveAdmin serves operators until ctx ends.
func (n *Node) serveAdmin(ctx context.Context) error {
	l := n.cfg.Admin
	if l == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	var err error
	if _, unix := l.Addr().(*net.UnixAddr); unix {
		local := &local{authority: n.authority, name: identity.Name{
			Cluster: n.credentials.Name().Cluster, Role: cluster.Admin, Node: "local-" + n.self.ID,
		}}
		err = plainhttp.Serve(ctx, l, local.wrap(n.handler(), n.cfg.Log.Error))
	} else {
		var server *h2.Server
		server, err = h2.NewServer(h2.Config{TLS: n.credentials.Server(identity.ProtocolHTTP), Log: n.cfg.Log}, n.adminsOnly(n.handler()))
		if err == nil {
			err = server.Serve(ctx, l)
		}
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("admin: %w", err)
	}
	return context.Cause(ctx)
}

// local is the identity of whoever may open the Unix socket: an admin, with a
// certificate that never leaves the process. So the calls of the socket go through the
// same checks as all others.
type local struct {
	authority *identity.Authority
	name      identity.Name

	mu   sync.Mutex
	leaf *x509.Certificate
}

// certificate returns one that holds for a while.
func (l *local) certificate(now time.Time) (*x509.Certificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaf != nil && now.Add(identity.NodeLife/2).Before(l.leaf.NotAfter) {
		return l.leaf, nil
	}
	text, _, err := issue(l.authority, l.name, now)
	if err != nil {
		return nil, err
	}
	l.leaf, err = identity.ParseCertificate(text)
	return l.leaf, err
}

func (l *local) wrap(h http.Handler, log func(msg string, args ...any)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaf, err := l.certificate(time.Now())
		if err != nil {
			log("admin socket", "err", err)
			refuse(w, http.StatusInternalServerError, client.Problem(errors.New("no certificate")))
			return
		}
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
		h.ServeHTTP(w, r)
	})
}
