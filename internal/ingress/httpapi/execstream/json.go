package execstream

import (
	"net/http"
	"runtime"
	"strconv"

	"github.com/pandastack/pandastack/internal/lib/jsonstream"
)

// EncodingFailed is the body of a response whose value could not be encoded.
const EncodingFailed = `{"error":"the response could not be encoded","code":"internal","retryable":false}`

// StreamJSON writes v as JSON, piece by piece. A response that fits into one piece has a length.
func StreamJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	out := &spillWriter{w: w, status: status}
	err := jsonstream.Write(out, v)
	if err == nil {
		_, err = out.Write([]byte{'\n'})
	}
	_ = out.end(err) // the client may have closed the connection
}

// spillSize is how much of a response is held back, so that a short one has a length.
const spillSize = 64 << 10

// spillWriter writes a response whose header follows from its length.
type spillWriter struct {
	w      http.ResponseWriter
	status int
	held   []byte
	begun  bool
}

func (s *spillWriter) Write(p []byte) (int, error) {
	if len(s.held)+len(p) > spillSize {
		if err := s.flush(); err != nil {
			return 0, err
		}
	}
	s.held = append(s.held, p...)
	return len(p), nil
}

func (s *spillWriter) flush() error {
	if !s.begun {
		s.begun = true
		s.w.WriteHeader(s.status)
	}
	_, err := s.w.Write(s.held)
	s.held = s.held[:0]
	// Encoding is all work and no waiting: without this, large responses keep short ones from the processors for a
	// whole time slice of the scheduler each.
	runtime.Gosched()
	return err
}

// end writes what is held back. After an error of the encoding, the response is that error, or breaks off.
func (s *spillWriter) end(err error) error {
	switch {
	case err != nil && s.begun:
		return err
	case err != nil:
		s.status = http.StatusInternalServerError
		s.held = append(s.held[:0], EncodingFailed+"\n"...)
		fallthrough
	case !s.begun:
		s.w.Header().Set("Content-Length", strconv.Itoa(len(s.held)))
	}
	return s.flush()
}
