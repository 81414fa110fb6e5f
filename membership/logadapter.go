package membership

import (
	"context"
	"log/slog"
	"strings"
)

// logWriter gives the library's lines to a slog.Logger, one step below their own
// level: what it calls a warning happens whenever a node stops.
type logWriter struct{ to *slog.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	level := slog.LevelDebug
	if strings.HasPrefix(text, "[ERR]") {
		level = slog.LevelInfo
	}
	if _, after, ok := strings.Cut(text, "] "); ok && strings.HasPrefix(text, "[") {
		text = after
	}
	w.to.Log(context.Background(), level, text)
	return len(line), nil
}
