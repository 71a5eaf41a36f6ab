package function

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// The kinds of frames between this program and a shim. A call begins with frameStart; its body follows.
const (
	frameStart = 'S' // a start
	frameBody  = 'B' // a piece of the body
	frameEnd   = 'E' // the end of the body
	frameHead  = 'H' // a head: the beginning of a response
	frameData  = 'D' // a piece of the response or the result
	frameDone  = 'X' // a done: the end
)

const (
	maxFrame  = 1 << 20
	bodyPiece = 64 << 10
)

// What a shim is to do.
const (
	callLoad      = "load" // reply when the handler is loaded
	callRestored  = "restored"
	callEvent     = "event"
	callScheduled = "scheduled"
	callQueue     = "queue"
	callHTTP      = "http"
)

// start begins a call.
type start struct {
	Kind      string            `json:"kind"`
	Number    uint32            `json:"number"` // tags its output
	ID        string            `json:"id,omitempty"`
	Attempt   int               `json:"attempt,omitempty"`
	Remaining int64             `json:"remaining,omitempty"` // milliseconds; 0: no limit
	Trace     string            `json:"trace,omitempty"`
	Scheduled string            `json:"scheduled,omitempty"`
	Queue     string            `json:"queue,omitempty"`
	Method    string            `json:"method,omitempty"`
	URL       string            `json:"url,omitempty"` // path and query as sent
	Host      string            `json:"host,omitempty"`
	Headers   [][2]string       `json:"headers,omitempty"`
	Env       map[string]string `json:"env,omitempty"` // of callRestored: all variables
	Rehearsal bool              `json:"rehearsal,omitempty"`
}

// head begins the response to a request.
type head struct {
	Status  int         `json:"status"`
	Headers [][2]string `json:"headers"`
}

// done ends a call.
type done struct {
	Failure  *failure `json:"failure"`
	ExitCode *int     `json:"exit_code"`
	Last     bool     `json:"last"` // the process ends
	// Of callLoad.
	Style    string   `json:"style"`
	Handlers []string `json:"handlers"` // kinds of calls that the handler has functions for
}

// writeFrame writes one frame.
func writeFrame(w io.Writer, kind byte, data []byte) error {
	buf := make([]byte, 5, 5+len(data))
	buf[0] = kind
	binary.BigEndian.PutUint32(buf[1:], uint32(len(data)))
	_, err := w.Write(append(buf, data...))
	return err
}

func writeStart(w io.Writer, s start) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if len(data) > maxFrame {
		return fmt.Errorf("the headers have %d bytes, at most %d", len(data), maxFrame)
	}
	return writeFrame(w, frameStart, data)
}

// readFrame reads one frame. Its data is valid until the next call with the same buffer.
func readFrame(r *bufio.Reader, buf []byte) (kind byte, data []byte, err error) {
	var h [5]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > maxFrame {
		return 0, nil, errProtocol
	}
	if int(n) <= cap(buf) {
		data = buf[:n]
	} else {
		data = make([]byte, n)
	}
	_, err = io.ReadFull(r, data)
	return h[0], data, err
}
