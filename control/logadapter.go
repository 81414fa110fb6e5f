package control

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// logAdapter gives the library's words to a slog.Logger. All below its
// errors is our Debug: it tells of every step of an election, and the Node itself
// tells what changes for others.
type logAdapter struct {
	to   *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = (*logAdapter)(nil)

func (a *logAdapter) level(l hclog.Level) slog.Level {
	switch l {
	case hclog.Error:
		return slog.LevelWarn
	default:
		return slog.LevelDebug
	}
}

// unreachable begins what the library says, again and again, of a node that does not
// answer. The leader tells once that a node is lost.
func unreachable(msg string) bool {
	for _, prefix := range []string{
		"failed to make request", "failed to heartbeat to", "failed to appendEntries to", "failed to start pipeline",
		"failed to decode incoming command", "failed to flush response", "failed to send snapshot", "failed to make pre",
	} {
		if strings.HasPrefix(msg, prefix) {
			return true
		}
	}
	return false
}

func (a *logAdapter) Log(l hclog.Level, msg string, args ...any) {
	level := a.level(l)
	if unreachable(msg) {
		level = slog.LevelDebug
	}
	if !a.to.Enabled(context.Background(), level) {
		return
	}
	attrs := make([]any, 0, len(args)+2)
	for i := 0; i+1 < len(args); i += 2 {
		key := strings.ReplaceAll(fmt.Sprint(args[i]), "error", "err")
		value := args[i+1]
		if f, ok := value.(hclog.Format); ok && len(f) > 0 {
			value = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		attrs = append(attrs, slog.String(key, fmt.Sprint(value)))
	}
	a.to.Log(context.Background(), level, "raft: "+msg, attrs...)
}

func (a *logAdapter) Trace(msg string, args ...any) { a.Log(hclog.Trace, msg, args...) }
func (a *logAdapter) Debug(msg string, args ...any) { a.Log(hclog.Debug, msg, args...) }
func (a *logAdapter) Info(msg string, args ...any)  { a.Log(hclog.Info, msg, args...) }
func (a *logAdapter) Warn(msg string, args ...any)  { a.Log(hclog.Warn, msg, args...) }
func (a *logAdapter) Error(msg string, args ...any) { a.Log(hclog.Error, msg, args...) }

func (a *logAdapter) enabled(l hclog.Level) bool {
	return a.to.Enabled(context.Background(), a.level(l))
}
func (a *logAdapter) IsTrace() bool { return a.enabled(hclog.Trace) }
func (a *logAdapter) IsDebug() bool { return a.enabled(hclog.Debug) }
func (a *logAdapter) IsInfo() bool  { return a.enabled(hclog.Info) }
func (a *logAdapter) IsWarn() bool  { return a.enabled(hclog.Warn) }
func (a *logAdapter) IsError() bool { return a.enabled(hclog.Error) }

func (a *logAdapter) ImpliedArgs() []any { return a.args }
func (a *logAdapter) Name() string       { return a.name }

func (a *logAdapter) With(args ...any) hclog.Logger {
	return &logAdapter{a.to.With(args...), a.name, append(a.args[:len(a.args):len(a.args)], args...)}
}

func (a *logAdapter) Named(name string) hclog.Logger {
	if a.name != "" {
		name = a.name + "." + name
	}
	return a.ResetNamed(name)
}

func (a *logAdapter) ResetNamed(name string) hclog.Logger { return &logAdapter{a.to, name, a.args} }

// SetLevel does nothing: the slog.Logger decides.
func (a *logAdapter) SetLevel(hclog.Level)  {}
func (a *logAdapter) GetLevel() hclog.Level { return hclog.Debug }

func (a *logAdapter) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(a.to.Handler(), slog.LevelDebug)
}

func (a *logAdapter) StandardWriter(*hclog.StandardLoggerOptions) io.Writer {
	return a.StandardLogger(nil).Writer()
}
