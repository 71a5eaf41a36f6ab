package schedule

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/signature"
)

const key = "the secret of a schedule"

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// receiver responds by the path of a request, and keeps the last request to /ok.
func receiver(t *testing.T, last *http.Request, body *string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			data, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			*last, *body = *r, string(data)
			_, _ = io.WriteString(w, "taken") // the client may have left
		case "/much":
			_, _ = io.WriteString(w, strings.Repeat("x", 2*api.MaxRunOutput))
		case "/broken":
			w.WriteHeader(http.StatusInternalServerError)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		case "/moved":
			http.Redirect(w, r, "/ok", http.StatusTemporaryRedirect)
		case "/inside":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestSend(t *testing.T) {
	t.Parallel()
	var last http.Request
	var body string
	url := receiver(t, &last, &body)
	s := newSender(loopback)
	t.Cleanup(s.close)
	target := api.ScheduleTarget{URL: url + "/moved", Body: `{"a":1}`, Headers: map[string]string{"X-Mine": "yes"}}
	out := s.send(t.Context(), target, key, map[string]string{"RUN_ID": "run1", "ATTEMPT": "2"}, time.Minute)
	if out.state != store.RunSuccess || out.stdout != "taken" || *out.exit != http.StatusOK {
		t.Errorf("outcome = %+v", out)
	}
	h := last.Header
	if last.Method != http.MethodPost || body != target.Body || h.Get("X-Mine") != "yes" ||
		h.Get("X-Pandastack-Run-Id") != "run1" || h.Get("X-Pandastack-Attempt") != "2" {
		t.Errorf("request = %s %q %v", last.Method, body, h)
	}
	stamp, _, _ := strings.Cut(strings.TrimPrefix(h.Get(signatureHeader), "t="), ",")
	var seconds int64
	for _, c := range stamp {
		seconds = seconds*10 + int64(c-'0')
	}
	if want := signature.Sign(key, time.Unix(seconds, 0), body); h.Get(signatureHeader) != want || seconds == 0 {
		t.Errorf("signature = %s, want %s", h.Get(signatureHeader), want)
	}
	for path, want := range map[string]string{
		"/broken": "error: the response was Internal Server Error",
		"/round":  "error: more than 3 redirects",
		"/inside": "error: the address is not public",
		"/much":   "success: ",
	} {
		out := s.send(t.Context(), api.ScheduleTarget{URL: url + path, Method: "GET"}, key, nil, time.Minute)
		if got := out.state + ": " + out.err; !strings.Contains(got, strings.TrimPrefix(want, "error: ")) ||
			!strings.HasPrefix(got, want[:5]) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
		if len(out.stdout) > api.MaxRunOutput {
			t.Errorf("%s: %d bytes were kept", path, len(out.stdout))
		}
	}
	out = newSender(nil).send(t.Context(), target, key, nil, time.Minute)
	if !strings.Contains(out.err, "not public") {
		t.Errorf("request to a private address: %+v", out)
	}
}

// TestSendTimeout asks a receiver that never responds.
func TestSendTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sender{now: time.Now, client: &http.Client{Transport: silent{}}}
		out := s.send(t.Context(), api.ScheduleTarget{URL: "http://receiver"}, key, nil, 7*time.Second)
		if out.state != store.RunTimeout || out.err != "there was no response within 7s" {
			t.Errorf("outcome = %+v", out)
		}
	})
}

type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}
