package schedule

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/netguard"
	"github.com/pandastack/pandastack/internal/lib/signature"
)

// Headers of requests, besides X-Pandastack-Run-Id, -Schedule-Id, -Attempt and -Scheduled-For.
const (
	headerPrefix    = "X-Pandastack-"
	signatureHeader = headerPrefix + "Signature"
)

// maxRedirects is how many redirects of a receiver are followed.
const maxRedirects = 3

// sender sends requests to addresses of users' choice.
type sender struct {
	client *http.Client
	now    func() time.Time
}

func newSender(allow []netip.Prefix) *sender {
	guard := netguard.Guard{Allow: allow}
	dialer := net.Dialer{Timeout: 10 * time.Second, Control: guard.Control}
	transport := &http.Transport{
		DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		MaxResponseHeaderBytes: 64 << 10, MaxIdleConns: 64, IdleConnTimeout: 30 * time.Second,
	}
	return &sender{now: time.Now, client: &http.Client{
		Transport: transport,
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("more than %d redirects", maxRedirects)
			}
			return nil
		},
	}}
}

func (s *sender) close() { s.client.CloseIdleConnections() }

// send sends the request of a target and returns what became of it. A status below 300 is a success.
func (s *sender) send(
	ctx context.Context,
	target api.ScheduleTarget,
	secret string,
	facts map[string]string,
	limit time.Duration,
) outcome {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	method := target.Method
	if method == "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, target.URL, strings.NewReader(target.Body))
	if err != nil {
		return failed(api.Errorf(api.Invalid, "target.url: %v", err))
	}
	r.Header.Set("User-Agent", "pandastack-schedule")
	for name, value := range target.Headers {
		r.Header.Set(name, value)
	}
	for name, value := range facts {
		r.Header.Set(headerPrefix+strings.ReplaceAll(name, "_", "-"), value)
	}
	r.Header.Set(signatureHeader, signature.Sign(secret, s.now(), target.Body))
	response, err := s.client.Do(r)
	if err != nil {
		return unanswered(err, limit)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, api.MaxRunOutput))
	if err != nil {
		return unanswered(err, limit)
	}
	out := outcome{state: store.RunSuccess, exit: new(response.StatusCode), stdout: string(body)}
	if response.StatusCode >= http.StatusMultipleChoices {
		out.state, out.err = store.RunError, "the response was "+http.StatusText(response.StatusCode)
		if http.StatusText(response.StatusCode) == "" {
			out.err = fmt.Sprintf("the response was %d", response.StatusCode)
		}
	}
	return out
}

// unanswered is the outcome of a request without a whole response.
func unanswered(err error, limit time.Duration) outcome {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return outcome{state: store.RunTimeout, err: fmt.Sprintf("there was no response within %s", limit)}
	case errors.Is(err, netguard.ErrNotPublic):
		return outcome{
			state: store.RunError,
			err:   "the address is not public: an operator can allow its network with schedules.allow_networks",
		}
	}
	return outcome{state: store.RunError, err: err.Error()}
}
