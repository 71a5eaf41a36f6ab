package access

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/lib/accept"
)

// Keys authenticates tokens; *auth.Keys does.
type Keys interface {
	Authenticate(ctx context.Context, token string, from netip.Addr) (auth.Principal, error)
	Known(token string) bool
	OfKey(ctx context.Context, prefix string, from netip.Addr) (auth.Principal, error)
}

// Audit records calls; *audit.Log does.
type Audit interface {
	Record(ctx context.Context, e audit.Entry)
	RecordUse(ctx context.Context, e audit.Entry)
}

// Config configures a Guard. A limit of 0 is unlimited.
type Config struct {
	KeyRate           int // requests a second of one key
	AddressRate       int // requests a second of one address
	FailuresPerMinute int // failed authentications of one address

	Door *Door // bounds requests that are served at once; nil: there is no bound

	RecordFileReads bool // record reads of files' contents, which change nothing
}

// burst is how many seconds of a rate a client can use up at once.
const burst = 2

// Guard admits requests to operations.
type Guard struct {
	keys                         Keys
	log                          Audit
	perKey, perAddress, failures *limits
	recordFileReads              bool
	door                         *Door
}

// New returns a guard. Without a log nothing is recorded.
func New(cfg Config, keys Keys, log Audit) *Guard {
	return &Guard{
		keys: keys, log: log, door: cfg.Door,
		perKey:     newLimits(float64(cfg.KeyRate), cfg.KeyRate*burst),
		perAddress: newLimits(float64(cfg.AddressRate), cfg.AddressRate*burst),
		failures:   newLimits(float64(cfg.FailuresPerMinute)/60, cfg.FailuresPerMinute),

		recordFileReads: cfg.RecordFileReads,
	}
}

// Admit returns the caller with the token of a key if it may do what needs a scope now.
//
// It sets the headers RateLimit-* and, if it refuses because of a rate, Retry-After. The principal is also returned
// with an error if the key is valid, for the audit log.
func (g *Guard) Admit(w http.ResponseWriter, r *http.Request, token string, need Need) (auth.Principal, error) {
	known := func() bool { return g.keys.Known(token) }
	return g.admit(w, r, need, known, func(from netip.Addr) (auth.Principal, error) {
		if token == "" {
			return auth.Principal{}, api.Errorf(api.Unauthenticated,
				"no key: send the header Authorization: Bearer pds_...")
		}
		return g.keys.Authenticate(r.Context(), token, from)
	})
}

// AdmitFor is Admit for a caller with a credential that a key gave out. prefix names that key; invalid says why the
// credential is none.
func (g *Guard) AdmitFor(
	w http.ResponseWriter,
	r *http.Request,
	prefix string,
	invalid error,
	need Need,
) (auth.Principal, error) {
	known := func() bool { return invalid == nil }
	return g.admit(w, r, need, known, func(from netip.Addr) (auth.Principal, error) {
		if invalid != nil {
			return auth.Principal{}, invalid
		}
		return g.keys.OfKey(r.Context(), prefix, from)
	})
}

// admit is Admit for any credential. known reports, without work, whether it is valid for sure.
func (g *Guard) admit(
	w http.ResponseWriter,
	r *http.Request,
	need Need,
	known func() bool,
	authenticate func(from netip.Addr) (auth.Principal, error),
) (auth.Principal, error) {
	from := AddressOf(r)
	if q := g.perAddress.take(accept.Network(from), 1); !q.ok {
		return auth.Principal{}, refuse(w, q, "requests from the address "+from.String())
	} else if g.perKey == nil {
		q.show(w.Header())
	}
	if q := g.failures.take(accept.Network(from), 0); !q.ok && !known() {
		return auth.Principal{}, refuse(w, q, "failed authentications from the address "+from.String())
	}
	p, err := authenticate(from)
	if api.CodeOf(err) == api.Unauthenticated {
		return auth.Principal{}, g.failed(r, err)
	}
	if err != nil {
		return auth.Principal{}, err
	}
	q := g.perKey.take(p.KeyPrefix, 1)
	q.show(w.Header())
	if !q.ok {
		return p, refuse(w, q, "requests with the key "+p.KeyPrefix)
	}
	scope, ok := need.Scope()
	switch {
	case ok && p.Scopes.Has(scope):
		return p, nil
	case scope == api.ScopeNode || scope == api.ScopeMetrics:
		return p, api.Errorf(api.Forbidden, "this needs an operator's key with the scope %s, and the key %s is none",
			scope, p.KeyPrefix).With("scope", scope)
	}
	return p, api.Errorf(api.Forbidden, "this needs the scope %s, which the key %s lacks", need, p.KeyPrefix).
		With("scope", need)
}

// AdmitAddress returns an error with the code rate_limited if an address makes too many requests.
//
// It is for operations whose callers show no key.
func (g *Guard) AdmitAddress(w http.ResponseWriter, r *http.Request) error {
	from := AddressOf(r)
	if q := g.perAddress.take(accept.Network(from), 1); !q.ok {
		return refuse(w, q, "requests from the address "+from.String())
	}
	return nil
}

// AdmitConnection is AdmitAddress for connections of protocols other than HTTP that will authenticate.
//
// It also refuses addresses that failed to authenticate too often.
func (g *Guard) AdmitConnection(from netip.Addr) error {
	for _, one := range []struct {
		limits *limits
		take   int
		what   string
	}{{g.perAddress, 1, "connections"}, {g.failures, 0, "failed authentications"}} {
		if q := one.limits.take(accept.Network(from), one.take); !q.ok {
			return api.Errorf(api.RateLimited, "too many %s from the address %s: retry in %d s", one.what, from,
				int(q.retry.Seconds()))
		}
	}
	return nil
}

// FailedConnection counts a connection of such a protocol that failed to authenticate.
func (g *Guard) FailedConnection(from netip.Addr) { g.failures.take(accept.Network(from), 1) }

// failed counts a failed authentication of an address and returns err.
func (g *Guard) failed(r *http.Request, err error) error {
	g.failures.take(accept.Network(AddressOf(r)), 1)
	return err
}

// Failed counts a failed authentication by other means than a key: a token of a sandbox or a signature.
func (g *Guard) Failed(r *http.Request) { _ = g.failed(r, nil) }

// PortConfig are the limits of PortLimits. 0 is unlimited.
type PortConfig struct {
	PortRate    int // requests a second to one port of one sandbox
	AddressRate int // requests a second of one address to all ports
}

// PortLimits limits the requests to ports of sandboxes, whether programs or this node serve the ports.
type PortLimits struct {
	perPort, perAddress *limits
}

// NewPortLimits returns limits of ports.
func NewPortLimits(cfg PortConfig) *PortLimits {
	return &PortLimits{
		perPort:    newLimits(float64(cfg.PortRate), cfg.PortRate*burst),
		perAddress: newLimits(float64(cfg.AddressRate), cfg.AddressRate*burst),
	}
}

// Admit returns an error with the code rate_limited if a request to a port is over a limit.
//
// It then sets the headers RateLimit-* and Retry-After. Other responses have none of them: they are the program's.
func (l *PortLimits) Admit(w http.ResponseWriter, r *http.Request, sandbox string, port uint16) error {
	from := AddressOf(r)
	if q := l.perAddress.take(accept.Network(from), 1); !q.ok {
		return refuse(w, q, "requests to ports from the address "+from.String())
	}
	if q := l.perPort.take(sandbox+":"+strconv.Itoa(int(port)), 1); !q.ok {
		return refuse(w, q, fmt.Sprintf("requests to port %d of %s", port, sandbox))
	}
	return nil
}

// show sets the headers of a quota.
func (q quota) show(h http.Header) {
	if q.limit == 0 {
		return
	}
	h.Set("RateLimit-Limit", strconv.Itoa(q.limit))
	h.Set("RateLimit-Remaining", strconv.Itoa(q.remaining))
	h.Set("RateLimit-Reset", strconv.Itoa(int(q.reset.Seconds())))
}

func refuse(w http.ResponseWriter, q quota, what string) error {
	q.show(w.Header())
	seconds := int(q.retry.Seconds())
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	return api.Errorf(api.RateLimited, "too many %s: retry in %d s", what, seconds).
		With("retry_after_seconds", seconds)
}

// Call is a request that was served, for the audit log.
type Call struct {
	Face      Face
	Pattern   string
	Action    string // "": the method and the path of Pattern
	Principal auth.Principal
	Token     string // that the request showed, if it is a key
	Target    string
	Status    int
	Request   string // id
	Began     time.Time
}

// Record records a call: a refused one always, others if their operation is recorded. Reads of one file by the same
// caller are recorded once a minute, with the path in the action.
func (g *Guard) Record(r *http.Request, c Call) {
	refused := c.Status == http.StatusUnauthorized || c.Status == http.StatusForbidden ||
		c.Status == http.StatusTooManyRequests
	switch {
	case g.log == nil:
	case refused || Recorded(c.Face, c.Pattern):
		g.log.Record(r.Context(), entry(r, c))
	case g.recordFileReads && fileReads[c.Face][c.Pattern] && r.Method == http.MethodGet:
		e := entry(r, c)
		e.Action += " " + r.URL.Query().Get("path")
		g.log.RecordUse(r.Context(), e)
	}
}

// RecordUse records a call like Record, but calls that differ in nothing only once a minute. It is for requests that
// programs and pages repeat.
func (g *Guard) RecordUse(r *http.Request, c Call) {
	if g.log != nil {
		g.log.RecordUse(r.Context(), entry(r, c))
	}
}

func entry(r *http.Request, c Call) audit.Entry {
	e := audit.Entry{
		At: c.Began, Principal: c.Principal, Action: c.Action, Target: c.Target, Outcome: "ok",
		Remote: AddressOf(r).String(), Request: c.Request, Took: time.Since(c.Began),
	}
	if e.Action == "" {
		e.Action = r.Method + " " + pathOf(c.Pattern)
	}
	if e.Principal.KeyPrefix == "" {
		e.Principal.KeyPrefix = auth.PrefixOf(c.Token)
	}
	if c.Status >= http.StatusBadRequest {
		e.Outcome = string(api.CodeOfStatus(c.Status))
	}
	return e
}

// Watch returns a writer that calls f once, with the status, when the response begins.
//
// An upgrade of the connection is such a begin.
func Watch(w http.ResponseWriter, f func(status int)) http.ResponseWriter {
	return &watched{ResponseWriter: w, f: f}
}

type watched struct {
	http.ResponseWriter
	f func(status int)
}

func (w *watched) tell(status int) {
	if f := w.f; f != nil && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.f = nil
		f(status)
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *watched) WriteHeader(status int) {
	w.tell(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *watched) Write(b []byte) (int, error) {
	w.tell(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// Flush implements http.Flusher, which connect asserts.
func (w *watched) Flush() {
	_ = http.NewResponseController(w.ResponseWriter).Flush() // the next write finds out if the client is gone
}

// Unwrap lets http.ResponseController find other methods of the wrapped writer.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }
