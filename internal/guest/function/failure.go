package function

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

// The types of failures that are not errors of a handler.
const (
	typeNotFound    = "Runtime.EntrypointNotFound"
	typeUnsupported = "Runtime.Unsupported"
	typeTimeout     = "Runtime.Timeout"
	typeExited      = "Runtime.Exited"
	typeMemory      = "Runtime.OutOfMemory"
	typeClosed      = "Runtime.ConnectionClosed"
	typeProtocol    = "Runtime.Protocol"
	typeEvent       = "Runtime.InvalidEvent"
	typeResult      = "Runtime.InvalidResult"
	typeResponse    = "Runtime.InvalidResponse"
	typeNoHandler   = "Runtime.NoHandler"
	typeHTTP        = "HTTPError"
)

type failure = fnruntime.Failure

var errProtocol = errors.New("malformed frame")

func failed(kind, format string, args ...any) *failure {
	return &failure{Type: kind, Message: fmt.Sprintf(format, args...)}
}

func timedOut() *failure {
	return failed(typeTimeout, "the time ran out before the handler ended")
}

// exitFailure says how a process has ended in place of a result. killed: this program did it.
func exitFailure(state *os.ProcessState, memory bool) (*failure, *int) {
	if state == nil {
		return failed(typeExited, "the handler's process could not be waited for"), nil
	}
	status, _ := state.Sys().(syscall.WaitStatus)
	code := state.ExitCode()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	switch {
	case memory:
		return failed(typeMemory, "the handler used more memory than its machine has"), &code
	case status.Signaled():
		return failed(typeExited, "a signal ended the handler's process: %s", status.Signal()), &code
	}
	return failed(typeExited, "the handler's process ended with exit code %d before there was a result", code), &code
}

// bound shortens the texts of a failure.
func bound(f *failure) *failure {
	if f == nil {
		return nil
	}
	short := func(s string, limit int) string { return s[:min(len(s), limit)] }
	return &failure{
		Type: short(f.Type, 128), Message: short(f.Message, 8<<10), Stack: short(f.Stack, fnruntime.MaxStack),
	}
}
