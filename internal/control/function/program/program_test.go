package program_test

import (
	"context"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/function/program"
)

// dialer reaches a server in place of one in a guest.
type dialer struct {
	guestapi.PortDialer
	address string
}

func (d dialer) DialPort(ctx context.Context, _ uint16) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", d.address)
}

// TestRequestsAreMarked checks that what callers of a handler send never is a verb of the program, whatever its path
// and headers.
func TestRequestsAreMarked(t *testing.T) {
	var path, marks string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, marks = r.URL.Path, strings.Join(r.Header[fnruntime.HeaderRequest], " ")
		_, _ = io.Copy(io.Discard, r.Body) // all that was sent
		w.Header().Set("Trailer", fnruntime.TrailerSummary)
		_, _ = io.WriteString(w, "{}") // the client may have left
		w.Header().Set(fnruntime.TrailerSummary, base64.StdEncoding.EncodeToString([]byte("{}")))
	}))
	defer srv.Close()
	p := program.Open(dialer{address: srv.Listener.Addr().String()})
	defer p.Close()
	call := program.Call{Run: api.NewInvocationID(), Deadline: time.Now().Add(time.Hour), MaxResult: 1 << 10}
	for _, verb := range []string{fnruntime.PathRestored, fnruntime.PathEvent, fnruntime.PathSummary + "x", "/"} {
		r := httptest.NewRequest(http.MethodPost, verb, strings.NewReader("{}"))
		r.Header[fnruntime.HeaderRequest] = []string{""}
		if _, _, err := p.Forward(t.Context(), call, httptest.NewRecorder(), r); err != nil {
			t.Fatal(err)
		}
		if path != verb || marks != "1" {
			t.Errorf("Forward %s: path %s, mark %q", verb, path, marks)
		}
		if _, err := p.Get(t.Context(), call, verb); err != nil || path != verb || marks != "1" {
			t.Errorf("Get %s: path %s, mark %q: %v", verb, path, marks, err)
		}
	}
	for name, f := range map[string]func(context.Context) error{
		fnruntime.PathEvent: func(ctx context.Context) error {
			_, err := p.Event(ctx, call, []byte("{}"))
			return err
		},
		fnruntime.PathRehearse: func(ctx context.Context) error {
			_, err := p.Rehearse(ctx, call)
			return err
		},
	} {
		if err := f(t.Context()); err != nil || path != name || marks != "" {
			t.Errorf("%s: path %s, mark %q: %v", name, path, marks, err)
		}
	}
}
