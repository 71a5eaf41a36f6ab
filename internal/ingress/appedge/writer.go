package appedge

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// recorder is the response to a request. It notes what the figures need.
type recorder struct {
	http.ResponseWriter
	app   *app
	uses  *uses  // nil: no replica serves the request
	limit *limit // until the response must have begun; nil: none
	began time.Time

	status int           // 0: not sent
	took   time.Duration // until it was sent
}

// Unwrap returns the writer for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	if status >= http.StatusOK {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	w.app.touch()
	return w.ResponseWriter.Write(p)
}

func (w *recorder) begin(status int) {
	if w.status != 0 {
		return
	}
	w.status, w.took = status, time.Since(w.began)
	if w.limit != nil {
		w.limit.stop()
	}
}

// Hijack implements http.Hijacker for WebSockets.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, both, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.begin(http.StatusSwitchingProtocols)
	s := &socket{Conn: c, app: w.app}
	if w.uses != nil {
		w.uses.hold(s)
	}
	return s, bufio.NewReadWriter(both.Reader, bufio.NewWriter(s)), nil
}

// limit bounds the time until a response begins, from the last byte of the request on.
type limit struct {
	timeout time.Duration

	mu    sync.Mutex
	timer *time.Timer // nil: the response has begun
}

func newLimit(timeout time.Duration, passed func()) *limit {
	return &limit{timeout: timeout, timer: time.AfterFunc(timeout, passed)}
}

// extend begins the time again.
func (l *limit) extend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Reset(l.timeout)
	}
}

// stop ends the limit.
func (l *limit) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// limitedBody is a body whose bytes extend the limit.
type limitedBody struct {
	io.ReadCloser
	limit *limit
}

// Read implements io.Reader.
func (b limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.limit.extend()
	return n, err
}
