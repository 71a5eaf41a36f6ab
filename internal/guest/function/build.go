package function

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

// events writes the events of a build. Its methods may be called concurrently.
type events struct {
	mu    sync.Mutex
	to    *json.Encoder
	lines int
}

const maxLines = 20_000

func (e *events) send(event fnruntime.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.to.Encode(event) // a reader that is gone ends this program
}

// line sends a line of output. Those after the first maxLines are left out.
func (e *events) line(text string) {
	e.mu.Lock()
	e.lines++
	n := e.lines
	e.mu.Unlock()
	text = strings.TrimRight(text, "\r\n")
	text = text[strings.LastIndexByte(text, '\r')+1:] // what is left of a progress bar in the end
	switch {
	case n < maxLines:
		e.send(fnruntime.Event{Kind: fnruntime.KindLog, Line: text})
	case n == maxLines:
		e.send(fnruntime.Event{Kind: fnruntime.KindLog, Line: "there is more output, which is left out"})
	}
}

// build unpacks the bundle, and installs dependencies if the request says so.
func (p Place) build(ctx context.Context, stdin io.Reader, out *events) error {
	var req fnruntime.BuildRequest
	if err := json.NewDecoder(io.LimitReader(stdin, maxRequest)).Decode(&req); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if err := p.unpack(req.Runtime, req.Entrypoint); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return errors.New("the disk of the machine is full: use a template with a larger one, or a smaller bundle")
		}
		return err
	}
	result := &fnruntime.Result{}
	if req.Install {
		bundle, err := os.Open(p.Bundle)
		if err != nil {
			return err
		}
		_, result.Key, err = fnruntime.Manifests(bundle)
		if err = errors.Join(err, bundle.Close()); err != nil {
			return err
		}
		if result.Manager, err = p.install(ctx, req, out); err != nil {
			return err
		}
	}
	out.send(fnruntime.Event{Kind: fnruntime.KindResult, Result: result})
	return nil
}

// hasAccount reports whether a file of accounts has one with a number.
func hasAccount(accounts []byte, uid int) bool {
	return strings.Contains(string(accounts), fmt.Sprintf(":x:%d:", uid))
}
