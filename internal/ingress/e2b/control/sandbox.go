package control

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Timeouts of the protocol in seconds: of requests that name none, and the longest.
const (
	defaultTimeout   = 300
	defaultTimeoutV1 = 15
	maxTimeout       = 24 * 3600
)

type newSandbox struct {
	TemplateID string            `json:"templateID"`
	Timeout    *int64            `json:"timeout"`
	Metadata   map[string]string `json:"metadata"`
	EnvVars    map[string]string `json:"envVars"`
	Secure     *bool             `json:"secure"`
	AutoPause  *bool             `json:"autoPause"`
	// AutoPauseMemory false keeps only the disk.
	AutoPauseMemory *bool       `json:"autoPauseMemory"`
	AutoResume      *autoResume `json:"autoResume"`
	Internet        *bool       `json:"allow_internet_access"`
	Network         *network    `json:"network"`
	// Fields that this server does not support: they must be empty.
	MCP json.RawMessage `json:"mcp"`
	IAM json.RawMessage `json:"iam"`

	VolumeMounts []volumeMount `json:"volumeMounts"`
}

type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// DecidesAccess implements lenient.Strict: a field such as readOnly must not be lost.
func (volumeMount) DecidesAccess() {}

type autoResume struct {
	Enabled bool `json:"enabled"`
}

type network struct {
	AllowPublicTraffic *bool  `json:"allowPublicTraffic"`
	MaskRequestHost    string `json:"maskRequestHost"`
	HTTPSPorts         []int  `json:"httpsPorts"`
	rules
}

// isEmptyJSON reports whether a field is absent or empty.
func isEmptyJSON(field json.RawMessage) bool {
	switch strings.TrimSpace(string(field)) {
	case "", "null", "{}", "[]":
		return true
	default:
		return false
	}
}

func (n *newSandbox) check() error {
	for name, field := range map[string]json.RawMessage{"mcp": n.MCP, "iam": n.IAM} {
		if !isEmptyJSON(field) {
			return api.Errorf(api.Unsupported, "%s is not supported by this server: leave it out", name).
				With("field", name)
		}
	}
	switch {
	case n.TemplateID == "":
		return api.Errorf(api.Invalid, "templateID: is empty; name a template")
	case n.AutoPauseMemory != nil && !*n.AutoPauseMemory && n.AutoResume != nil && n.AutoResume.Enabled:
		return api.Errorf(
			api.Invalid,
			"autoPauseMemory: a sandbox without memory is booted by its clients, not by requests: "+
				"leave autoResume out",
		)
	}
	return n.checkMounts()
}

func parseTimeout(given *int64, fallback int64) (int64, error) {
	if given == nil {
		return fallback, nil
	}
	if *given < 1 || *given > maxTimeout {
		return 0, api.Errorf(api.Invalid, "timeout: %d is not from 1 to %d seconds", *given, maxTimeout)
	}
	return *given, nil
}

func (s *Server) createV1(r *http.Request, p auth.Principal) (int, any, error) {
	return s.create(r, p, defaultTimeoutV1, false)
}

func (s *Server) createV2(r *http.Request, p auth.Principal) (int, any, error) {
	return s.create(r, p, defaultTimeout, true)
}

func (s *Server) create(r *http.Request, p auth.Principal, fallback int64, secure bool) (int, any, error) {
	var n newSandbox
	if err := s.decode(r, &n); err != nil {
		return 0, nil, err
	}
	if err := n.check(); err != nil {
		return 0, nil, err
	}
	timeout, err := parseTimeout(n.Timeout, fallback)
	if err != nil {
		return 0, nil, err
	}
	marks := []string{madeKey}
	if n.Secure != nil {
		secure = *n.Secure
	}
	if !secure {
		marks = append(marks, openKey)
	}
	if n.AutoResume != nil && n.AutoResume.Enabled {
		marks = append(marks, resumeKey+strconv.FormatInt(timeout, 10))
	}
	policy, err := n.policy()
	if err != nil {
		return 0, nil, err
	}
	never := int64(0)
	req := api.CreateRequest{
		TTLSeconds: &never, TimeoutSeconds: timeout, Metadata: withMarkers(n.Metadata, marks), Env: n.EnvVars,
		Network:  policy,
		Volumes:  n.mounts(),
		Injected: injected(n.TemplateID),
	}
	if n.AutoPause != nil && *n.AutoPause {
		req.OnTimeout = api.TimeoutHibernate
		if n.AutoPauseMemory != nil && !*n.AutoPauseMemory {
			req.OnTimeout = api.TimeoutStop
		}
	}
	if strings.HasPrefix(n.TemplateID, "snp") {
		req.FromSnapshot = api.SnapshotID(n.TemplateID)
	} else {
		req.Template = n.TemplateID // a tag of a recipe, which has no versions, means the recipe
	}
	if err := req.Validate(); err != nil {
		return 0, nil, err
	}
	box, err := s.sandboxes.Create(r.Context(), p, req)
	if req.Template != "" && (isCode(err, api.NotFound) || isCode(err, api.Invalid)) {
		if id := s.snapshotNamed(r, p, req.Template); id != "" {
			req.Template, req.FromSnapshot = "", id
			box, err = s.sandboxes.Create(r.Context(), p, req)
		}
	}
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, s.sandboxResponse(p, box), nil
}

// Keys that this API puts into a sandbox's metadata and does not show. madeKey marks a sandbox that was made through
// it. openKey marks one whose agent needs no token, which clients of the first version of this API expect unless they
// say otherwise. resumeKey, followed by seconds, marks one that requests wake for that time.
const (
	madeKey   = "secret.e2b"
	openKey   = "secret.e2b.open"
	resumeKey = "secret.e2b.resume."
)

func isMarkerKey(key string) bool {
	return key == madeKey || key == openKey || strings.HasPrefix(key, resumeKey)
}

func withMarkers(metadata map[string]string, marks []string) map[string]string {
	out := map[string]string{}
	for _, k := range marks {
		out[k] = "1"
	}
	for k, v := range metadata {
		out[k] = v
	}
	return out
}

// WakesOnRequest reports whether requests to a port wake a sandbox.
//
// Only its clients wake a sandbox that was made through this API, unless it was made to resume by itself and still has
// its memory.
func WakesOnRequest(b api.Sandbox) bool {
	_, made := b.Metadata[madeKey]
	return !made || resumes(b) && !b.MemoryDropped
}

// resumes reports whether a sandbox was made to resume by itself.
func resumes(b api.Sandbox) bool { return ResumeTimeout(b.Metadata) > 0 }

// ResumeTimeout returns how many seconds a sandbox with this metadata runs after a request woke it.
//
// It is at least the timeout that connecting gives. It is 0 if requests do not wake the sandbox, or the sandbox was
// made through another API.
func ResumeTimeout(metadata map[string]string) int64 {
	for key := range metadata {
		if text, ok := strings.CutPrefix(key, resumeKey); ok {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil || n > maxTimeout {
				n = defaultTimeout
			}
			return max(n, defaultTimeout)
		}
	}
	return 0
}

// injected returns what programs in a sandbox of this protocol expect: variables, each also as a file.
func injected(template string) *api.Injected {
	s := &api.Injected{
		Env: map[string]string{
			"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": api.SandboxIDPlaceholder, "E2B_TEMPLATE_ID": template,
		},
		Files: map[string]string{},
	}
	for name, value := range s.Env {
		s.Files["/run/e2b/."+name] = value
	}
	return s
}

// IsAgentPublic reports whether the agent of a sandbox with this metadata needs no token.
func IsAgentPublic(metadata map[string]string) bool {
	_, open := metadata[openKey]
	return open
}

type sandboxResponse struct {
	TemplateID         string `json:"templateID"`
	SandboxID          string `json:"sandboxID"`
	ClientID           string `json:"clientID"`
	EnvdVersion        string `json:"envdVersion"`
	EnvdAccessToken    string `json:"envdAccessToken,omitempty"`
	TrafficAccessToken string `json:"trafficAccessToken,omitempty"`
	Domain             string `json:"domain,omitempty"`
}

// clientID is a field that clients require and do not use.
const clientID = "pandastack"

// sandboxResponse returns a sandbox with the tokens that the key of the caller may have.
//
// Clients send the token for traffic to the code interpreter also if the ports are public.
func (s *Server) sandboxResponse(p auth.Principal, b api.Sandbox) sandboxResponse {
	a := sandboxResponse{
		TemplateID: b.Template, SandboxID: string(b.ID), ClientID: clientID,
		EnvdVersion: s.cfg.AgentVersion, Domain: s.cfg.Domain,
	}
	a.EnvdAccessToken = s.tokenFor(p, b)
	if p.Scopes.Has(api.ScopePorts) && (isPrivate(b) || a.EnvdAccessToken != "") {
		a.TrafficAccessToken = s.TrafficToken(b.ID)
	}
	return a
}

// tokenFor returns the token of a sandbox's agent if it has one and the caller may do what the agent can do.
func (s *Server) tokenFor(p auth.Principal, b api.Sandbox) string {
	if IsAgentPublic(b.Metadata) || !p.Scopes.Has(api.ScopeExec) || !p.Scopes.Has(api.ScopeFiles) {
		return ""
	}
	return s.AccessToken(b.ID)
}

type sandboxInfo struct {
	TemplateID  string            `json:"templateID"`
	Alias       string            `json:"alias,omitempty"`
	SandboxID   string            `json:"sandboxID"`
	ClientID    string            `json:"clientID"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	State       string            `json:"state"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int               `json:"memoryMB"`
	DiskSizeMB  int               `json:"diskSizeMB"`
	Metadata    map[string]string `json:"metadata"`
	EnvdVersion string            `json:"envdVersion"`

	VolumeMounts []volumeMount `json:"volumeMounts,omitempty"`
	// Only in the response for one sandbox.
	EnvdAccessToken string           `json:"envdAccessToken,omitempty"`
	Domain          string           `json:"domain,omitempty"`
	Internet        *bool            `json:"allowInternetAccess,omitempty"`
	Network         *networkResponse `json:"network,omitempty"`
	Lifecycle       *lifecycle       `json:"lifecycle,omitempty"`
}

type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

// never stands for the end of a sandbox that has none: the protocol has no value for that.
const never = 100 * 365 * 24 * time.Hour

func (s *Server) sandboxInfo(b api.Sandbox) sandboxInfo {
	l := sandboxInfo{
		TemplateID: b.Template, SandboxID: string(b.ID), ClientID: clientID, StartedAt: b.CreatedAt,
		EndAt: b.CreatedAt.Add(
			never,
		), State: newState(b.Status), CPUCount: b.CPU, MemoryMB: b.MemoryMB, DiskSizeMB: b.DiskMB,
		Metadata: map[string]string{}, EnvdVersion: s.cfg.AgentVersion,
	}
	for _, v := range b.Volumes {
		l.VolumeMounts = append(l.VolumeMounts, volumeMount{v.Name, v.MountPath})
	}
	if b.ExpiresAt != nil {
		l.EndAt = *b.ExpiresAt
	}
	if l.State == "paused" && !b.StatusSince.IsZero() {
		l.EndAt = b.StatusSince
	}
	if b.FromSnapshot == "" && !api.TemplateID(b.Template).Valid() {
		l.Alias, _ = api.SplitTemplate(b.Template)
	}
	for k, v := range b.Metadata {
		if !isMarkerKey(k) {
			l.Metadata[k] = v
		}
	}
	return l
}

func newState(st api.Status) string {
	switch st {
	case api.Paused, api.Hibernating, api.Hibernated:
		return "paused"
	default:
		return "running"
	}
}

// statusesOf are our states behind each state of the protocol.
var statusesOf = map[string][]api.Status{
	"running": {api.Creating, api.Running, api.Waking},
	"paused":  {api.Paused, api.Hibernating, api.Hibernated},
}

func (s *Server) listV1(r *http.Request, p auth.Principal) (int, any, error) {
	f, err := parseFilter(r.URL.Query())
	if err != nil {
		return 0, nil, err
	}
	f.Statuses, f.Limit = statusesOf["running"], 0 // all: this list has no pages
	page, err := s.sandboxes.List(r.Context(), p, f)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, s.sandboxInfos(page.Sandboxes), nil
}

func (s *Server) sandboxInfos(boxes []api.Sandbox) []sandboxInfo {
	out := []sandboxInfo{}
	for _, b := range boxes {
		out = append(out, s.sandboxInfo(b))
	}
	return out
}

func (s *Server) listV2(r *http.Request, p auth.Principal) (int, any, error) {
	q := r.URL.Query()
	f, err := parseFilter(q)
	if err != nil {
		return 0, nil, err
	}
	states := strings.Join(q["state"], ",")
	if states == "" {
		states = "running,paused"
	}
	for st := range strings.SplitSeq(states, ",") {
		of, ok := statusesOf[st]
		if !ok {
			return 0, nil, api.Errorf(api.Invalid, "state: %.40q is not running or paused", st)
		}
		f.Statuses = append(f.Statuses, of...)
	}
	page, err := s.sandboxes.List(r.Context(), p, f)
	if err != nil {
		return 0, nil, err
	}
	running, err := s.countRunning(r, p, f)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, paged{items: s.sandboxInfos(page.Sandboxes), next: page.Next, running: running}, nil
}

// countRunning returns how many sandboxes that match a filter run, on all pages.
func (s *Server) countRunning(r *http.Request, p auth.Principal, f api.SandboxFilter) (int, error) {
	f.Statuses, f.Limit, f.Cursor = statusesOf["running"], 0, ""
	all, err := s.sandboxes.List(r.Context(), p, f)
	return len(all.Sandboxes), err
}

// unescape removes the second encoding from a name or value: published clients encode each by itself and then all
// together. Text that is not encoded twice is returned as it is.
func unescape(text string) string {
	if inner, err := url.PathUnescape(text); err == nil {
		return inner
	}
	return text
}

// parseFilter reads the filter of a list. metadata is a query string inside a value of the query.
func parseFilter(q url.Values) (api.SandboxFilter, error) {
	f := api.SandboxFilter{Limit: 100, Cursor: q.Get("nextToken"), Template: q.Get("template")}
	switch order := q.Get("order"); order {
	case "", "desc":
	case "asc":
		f.Oldest = true
	default:
		return f, api.Errorf(api.Invalid, "order: %.20q is not asc or desc", order)
	}
	if text := q.Get("startedAfter"); text != "" {
		since, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return f, api.Errorf(api.Invalid, "startedAfter: %.40q is not a time such as 2026-01-02T15:04:05Z", text)
		}
		f.Since = since
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 100 {
			return f, api.Errorf(api.Invalid, "limit: %.20q is not from 1 to 100", text)
		}
		f.Limit = n
	}
	if text := q.Get("metadata"); text != "" {
		inner, err := url.ParseQuery(text)
		if err != nil {
			return f, api.Errorf(api.Invalid, "metadata: not a query string of names and values: %v", err)
		}
		f.Metadata = map[string]string{}
		for k := range inner {
			f.Metadata[unescape(k)] = unescape(inner.Get(k))
		}
	}
	return f, nil
}

func sandboxID(r *http.Request) api.SandboxID { return shortID(r.PathValue("id")) }

// shortID returns the id of a sandbox that clients of version 1 write with that of the client, as <id>-<client>.
func shortID(text string) api.SandboxID {
	id, _, _ := strings.Cut(text, "-")
	return api.SandboxID(id)
}

func (s *Server) get(r *http.Request, p auth.Principal) (int, any, error) {
	b, err := s.sandboxes.Get(r.Context(), p, sandboxID(r))
	if err != nil {
		return 0, nil, err
	}
	l := s.sandboxInfo(b)
	l.EnvdAccessToken = s.tokenFor(p, b)
	l.Domain, l.Internet, l.Network = s.cfg.Domain, &b.Egress, newNetworkResponse(b.Network)
	l.Lifecycle = &lifecycle{OnTimeout: "kill", AutoResume: resumes(b)}
	if b.OnTimeout.KeepsSandbox() {
		l.Lifecycle.OnTimeout = "pause"
	}
	return http.StatusOK, l, nil
}

// kill returns not_found for a sandbox that has ended: clients report that the sandbox did not exist.
func (s *Server) kill(r *http.Request, p auth.Principal) (int, any, error) {
	if _, err := s.sandboxes.Get(r.Context(), p, sandboxID(r)); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, s.sandboxes.Delete(r.Context(), p, sandboxID(r))
}
