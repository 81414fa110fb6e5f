package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/plainhttp"
)

// noSocket as --admin-socket means that there is none.
const noSocket = "none"

// errSocketTaken says that another process serves on the admin socket.
var errSocketTaken = errors.New("another server has the admin socket")

// defaultSocket is the admin socket of the user's server: in the user's runtime
// directory, or in one of the same kind below the directory for temporary files.
func defaultSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "trctl.sock")
	}
	return filepath.Join(os.TempDir(), "trctl-"+strconv.Itoa(os.Getuid()), "trctl.sock")
}

// listenAdmin opens the admin socket, which only its user can reach. A socket that
// a dead server has left is replaced.
func listenAdmin(ctx context.Context, path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if path == defaultSocket() {
		// Below a directory that all can write to, somebody else may have made it.
		if stat, err := os.Lstat(dir); err != nil || !stat.IsDir() || stat.Mode().Perm()&0o077 != 0 {
			return nil, fmt.Errorf("admin socket: %s is not a directory of this user alone", dir)
		}
	}
	if stat, err := os.Lstat(path); err == nil {
		if stat.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("admin socket: %s is in the way", path)
		}
		var d net.Dialer
		if conn, err := d.DialContext(ctx, "unix", path); err == nil {
			return nil, errors.Join(fmt.Errorf("%w: %s", errSocketTaken, path), conn.Close())
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("admin socket: %w", err)
		}
	}
	var l net.ListenConfig
	listener, err := l.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("admin socket: %w", err), listener.Close())
	}
	return listener, nil
}

// serveAdmin serves the admin endpoint until ctx ends. A socket that nobody has
// asked for by name is done without if it cannot be had.
func serveAdmin(ctx context.Context, path string, h http.Handler, log *slog.Logger) error {
	if path == noSocket {
		<-ctx.Done()
		return nil
	}
	named := path != ""
	if !named {
		path = defaultSocket()
	}
	listener, err := listenAdmin(ctx, path)
	switch {
	case err != nil && named:
		return socketError("--admin-socket", err)
	case err != nil:
		log.Warn("no admin socket", "err", err)
		<-ctx.Done()
		return nil
	}
	if err := plainhttp.Serve(ctx, listener, h); err != nil && ctx.Err() == nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	return nil
}

// adminClient is an HTTP client of the server behind a socket.
func adminClient(path string) *http.Client {
	if path == "" {
		path = defaultSocket()
	}
	return &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}},
	}
}
