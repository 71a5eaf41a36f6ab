// Package obs provides log lines, timed phases and metrics.
//
// Log keys are a fixed set (sandbox, machine, host, template, snapshot, workspace, took, err, phases); messages are
// constant, data goes into keys. The package does not know what is logged.
package obs

import (
	"fmt"
	"io"
	"log/slog"
)

// NewLogger returns a logger to w. format is "text" or "json"; level is "debug", "info", "warn" or "error". The error
// for any other value lists the valid ones.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	switch level {
	case "debug", "info", "warn", "error":
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("log level %q is not one of debug, info, warn, error", level)
	}
	opt := &slog.HandlerOptions{Level: l, ReplaceAttr: durationText}
	switch format {
	case "text":
		return slog.New(requestHandler{slog.NewTextHandler(w, opt)}), nil
	case "json":
		return slog.New(requestHandler{slog.NewJSONHandler(w, opt)}), nil
	}
	return nil, fmt.Errorf("log format %q is not one of text, json", format)
}
