package plainhttp

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/sourcegraph/conc/pool"
)

// How long a client may take for a request's headers, and keep a connection without
// a request.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 75 * time.Second
)

// Serve serves a handler on a listener until ctx ends, and then returns ctx's cause. It
// closes the listener and all connections, and the contexts of requests end with ctx;
// handlers that still run are not waited for. Any other error is the listener's.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	group := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	group.Go(func(context.Context) error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func(ctx context.Context) error {
		<-ctx.Done()
		return errors.Join(context.Cause(ctx), server.Close())
	})
	return group.Wait()
}
