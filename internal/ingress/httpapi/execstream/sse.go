package execstream

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// pingEvery keeps idle streams alive through proxies that cut silent connections.
const pingEvery = 20 * time.Second

// SSE writes server-sent events. Close must be called. Its methods may be called at once.
type SSE struct {
	rc   *http.ResponseController
	done chan struct{}
	wg   sync.WaitGroup

	mu  sync.Mutex
	w   http.ResponseWriter // guarded by mu
	err error               // the first error of writing; guarded by mu
}

// NewSSE responds with an event stream, which it keeps alive with comments while there are no events.
func NewSSE(w http.ResponseWriter) *SSE {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	s := &SSE{rc: http.NewResponseController(w), w: w, done: make(chan struct{})}
	_ = s.flush() // the first event meets the same error
	s.wg.Go(s.ping)
	return s
}

func (s *SSE) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
			if s.write(": ping\n\n") != nil {
				return
			}
		}
	}
}

// Event sends one event with data as JSON on one line.
func (s *SSE) Event(name string, data any) error {
	text, err := oneLine(data)
	if err != nil {
		return fmt.Errorf("encode %s event: %w", name, err)
	}
	return s.write("event: " + name + "\ndata: " + text + "\n\n")
}

// Raw sends one event with data as it is, a single line.
func (s *SSE) Raw(name, data string) error {
	return s.write("event: " + name + "\ndata: " + data + "\n\n")
}

// Text sends one event without a name. It has an id unless that is empty. data is a single line, sent as it is.
func (s *SSE) Text(id, data string) error {
	if id != "" {
		id = "id: " + id + "\n"
	}
	return s.write(id + "data: " + data + "\n\n")
}

// ID sends one event with an id, which an EventSource sends back when it reconnects.
func (s *SSE) ID(id, name string, data any) error {
	text, err := oneLine(data)
	if err != nil {
		return fmt.Errorf("encode %s event: %w", name, err)
	}
	return s.write("id: " + id + "\nevent: " + name + "\ndata: " + text + "\n\n")
}

// oneLine returns data as JSON without any character that a client may take for the end of a line. encoding/json
// escapes all of them except U+0085, at which Python's splitlines splits.
func oneLine(data any) (string, error) {
	b, err := json.Marshal(data)
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(string(b), "\u0085", `\u0085`), nil
}

func (s *SSE) write(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if _, s.err = s.w.Write([]byte(text)); s.err != nil {
		return s.err
	}
	s.err = s.flush()
	return s.err
}

func (s *SSE) flush() error {
	if err := s.rc.Flush(); err != nil {
		return fmt.Errorf("flush event stream: %w", err)
	}
	return nil
}

// Close ends the keep-alive. The response ends when its handler returns.
func (s *SSE) Close() {
	close(s.done)
	s.wg.Wait()
}
