package control

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// connect makes a sandbox run and extends its life to at least the requested time from now. The status is 200 if it
// ran, 201 if it was woken.
func (s *Server) connect(r *http.Request, p auth.Principal) (int, any, error) {
	var req struct {
		Timeout *int64 `json:"timeout"`
		Memory  *bool  `json:"memory"`
	}
	if err := s.decode(r, &req); err != nil {
		return 0, nil, err
	}
	timeout, err := parseTimeout(req.Timeout, defaultTimeout)
	if err != nil {
		return 0, nil, err
	}
	b, err := s.sandboxes.Get(r.Context(), p, sandboxID(r))
	if err != nil {
		return 0, nil, err
	}
	status := http.StatusOK
	if newState(b.Status) == "paused" {
		status = http.StatusCreated
		if b, err = s.wake(r, p, b, req.Memory); err != nil {
			return 0, nil, err
		}
	}
	if b.ExpiresAt == nil || time.Until(*b.ExpiresAt) < time.Duration(timeout)*time.Second {
		if err := s.setTimeout(r, p, timeout); err != nil {
			return 0, nil, err
		}
	}
	return status, s.sandboxResponse(p, b), nil
}

// wake makes a sleeping sandbox run. With memory false it boots from its disk.
func (s *Server) wake(r *http.Request, p auth.Principal, b api.Sandbox, memory *bool) (api.Sandbox, error) {
	fresh := memory != nil && !*memory
	if b.Status == api.Paused && fresh {
		return b, api.Errorf(
			api.WrongState,
			"memory: sandbox %s is paused in memory, by another API: resume it first",
			b.ID,
		)
	}
	if b.Status == api.Paused {
		return s.sandboxes.Resume(r.Context(), p, b.ID)
	}
	if fresh {
		if _, err := s.sandboxes.Stop(r.Context(), p, b.ID); err != nil {
			return b, err
		}
	}
	return s.sandboxes.Wake(r.Context(), p, b.ID)
}

func (s *Server) setTimeout(r *http.Request, p auth.Principal, seconds int64) error {
	_, err := s.sandboxes.SetLifecycle(r.Context(), p, sandboxID(r), api.LifecyclePatch{TimeoutSeconds: &seconds})
	return err
}

func (s *Server) resume(r *http.Request, p auth.Principal) (int, any, error) {
	var req struct {
		Timeout   *int64 `json:"timeout"`
		AutoPause *bool  `json:"autoPause"`
		Memory    *bool  `json:"memory"`
	}
	if err := s.decode(r, &req); err != nil {
		return 0, nil, err
	}
	timeout, err := parseTimeout(req.Timeout, defaultTimeoutV1)
	if err != nil {
		return 0, nil, err
	}
	b, err := s.sandboxes.Get(r.Context(), p, sandboxID(r))
	if err != nil {
		return 0, nil, err
	}
	if newState(b.Status) == "running" {
		return 0, nil, api.Errorf(api.WrongState, "sandbox %s runs already", b.ID)
	}
	if b, err = s.wake(r, p, b, req.Memory); err != nil {
		return 0, nil, err
	}
	patch := api.LifecyclePatch{TimeoutSeconds: &timeout}
	if req.AutoPause != nil {
		then := api.TimeoutDelete
		if *req.AutoPause {
			then = api.TimeoutHibernate
		}
		patch.OnTimeout = &then
	}
	if _, err := s.sandboxes.SetLifecycle(r.Context(), p, b.ID, patch); err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, s.sandboxResponse(p, b), nil
}

// pause hibernates a sandbox. A second pause is a conflict, which clients report as "paused already".
func (s *Server) pause(r *http.Request, p auth.Principal) (int, any, error) {
	var req struct {
		Memory *bool `json:"memory"`
	}
	if err := s.decode(r, &req); err != nil {
		return 0, nil, err
	}
	b, err := s.sandboxes.Get(r.Context(), p, sandboxID(r))
	if err != nil {
		return 0, nil, err
	}
	if b.Status == api.Hibernated || b.Status == api.Hibernating {
		return 0, nil, api.Errorf(api.WrongState, "sandbox %s is paused already", b.ID)
	}
	// A sandbox does not time out while it sleeps; connecting gives it a new timeout.
	if err := s.setTimeout(r, p, 0); err != nil {
		return 0, nil, err
	}
	rest := s.sandboxes.Hibernate
	if req.Memory != nil && !*req.Memory {
		rest = s.sandboxes.Stop
	}
	_, err = rest(r.Context(), p, b.ID)
	return http.StatusNoContent, nil, err
}

func (s *Server) timeout(r *http.Request, p auth.Principal) (int, any, error) {
	var req struct {
		Timeout *int64 `json:"timeout"`
	}
	if err := s.decode(r, &req); err != nil {
		return 0, nil, err
	}
	if req.Timeout == nil {
		return 0, nil, api.Errorf(api.Invalid, "timeout: is missing; give seconds from now")
	}
	seconds := max(*req.Timeout, 1) // 0 means to end now; 1 second is the nearest that does not mean "never"
	if seconds > maxTimeout {
		return 0, nil, api.Errorf(api.Invalid, "timeout: %d is more than %d seconds", seconds, maxTimeout)
	}
	b, err := s.sandboxes.Get(r.Context(), p, sandboxID(r))
	if err != nil {
		return 0, nil, err
	}
	if b.Status == api.Hibernating {
		return 0, nil, api.Errorf(api.WrongState, "sandbox %s is being paused", b.ID)
	}
	return http.StatusNoContent, nil, s.setTimeout(r, p, seconds)
}

func (s *Server) refresh(r *http.Request, p auth.Principal) (int, any, error) {
	var req struct {
		Duration int64 `json:"duration"`
	}
	if err := s.decode(r, &req); err != nil {
		return 0, nil, err
	}
	if req.Duration < 0 || req.Duration > maxTimeout {
		return 0, nil, api.Errorf(api.Invalid, "duration: %d is not from 0 to %d seconds", req.Duration, maxTimeout)
	}
	b, err := s.sandboxes.Get(r.Context(), p, sandboxID(r))
	if err != nil {
		return 0, nil, err
	}
	if b.ExpiresAt != nil && time.Until(*b.ExpiresAt) < time.Duration(req.Duration)*time.Second {
		err = s.setTimeout(r, p, req.Duration)
	}
	return http.StatusNoContent, nil, err
}

// maxFork is the protocol's limit; the service has its own, smaller one.
const maxFork = 100

type forkResult struct {
	Sandbox *sandboxResponse `json:"sandbox,omitempty"`
	Error   map[string]any   `json:"error,omitempty"`
}

func (s *Server) fork(r *http.Request, p auth.Principal) (int, any, error) {
	var req struct {
		Timeout *int64 `json:"timeout"`
		Count   *int   `json:"count"`
	}
	if err := s.decode(r, &req); err != nil {
		return 0, nil, err
	}
	timeout, err := parseTimeout(req.Timeout, defaultTimeout)
	if err != nil {
		return 0, nil, err
	}
	f := api.ForkRequest{Count: 1}
	if req.Count != nil {
		f.Count = *req.Count
	}
	if f.Count < 1 || f.Count > maxFork {
		return 0, nil, api.Errorf(api.Invalid, "count: %d is not from 1 to %d", f.Count, maxFork)
	}
	if err := f.Validate(); err != nil {
		return 0, nil, err
	}
	b, err := s.sandboxes.Get(r.Context(), p, sandboxID(r))
	if err != nil {
		return 0, nil, err
	}
	if newState(b.Status) == "paused" {
		return 0, nil, api.Errorf(api.WrongState, "sandbox %s is paused: connect to it before it is forked", b.ID)
	}
	answer, err := s.sandboxes.Fork(r.Context(), p, sandboxID(r), f)
	if err != nil {
		return 0, nil, err
	}
	out := []forkResult{}
	for _, child := range answer.Children {
		patch := api.LifecyclePatch{TimeoutSeconds: &timeout}
		if _, err := s.sandboxes.SetLifecycle(r.Context(), p, child.ID, patch); err != nil {
			return 0, nil, err
		}
		a := s.sandboxResponse(p, child)
		out = append(out, forkResult{Sandbox: &a})
	}
	for _, e := range answer.Errors {
		out = append(out, forkResult{Error: map[string]any{"code": e.Code.Info().Status, "message": e.Err}})
	}
	return http.StatusCreated, out, nil
}

type snapshotResponse struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func newSnapshotResponse(sn api.Snapshot) snapshotResponse {
	a := snapshotResponse{SnapshotID: string(sn.ID), Names: []string{}}
	if sn.Name != "" {
		a.Names = append(a.Names, sn.Name)
	}
	return a
}

func (s *Server) snapshot(r *http.Request, p auth.Principal) (int, any, error) {
	var req struct {
		Name string `json:"name"`
	}
	if err := s.decode(r, &req); err != nil {
		return 0, nil, err
	}
	take := api.SnapshotRequest{Name: snapshotName(req.Name, p)}
	if err := take.Validate(); err != nil {
		return 0, nil, err
	}
	sn, err := s.sandboxes.TakeSnapshot(r.Context(), p, sandboxID(r), take)
	return http.StatusCreated, newSnapshotResponse(sn), err
}

func (s *Server) snapshots(r *http.Request, p auth.Principal) (int, any, error) {
	q := r.URL.Query()
	f := api.SnapshotFilter{SandboxID: shortID(q.Get("sandboxID")), Limit: 100, Cursor: q.Get("nextToken")}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 100 {
			return 0, nil, api.Errorf(api.Invalid, "limit: %.20q is not from 1 to 100", text)
		}
		f.Limit = n
	}
	if name := q.Get("name"); name != "" {
		f.Name = snapshotName(name, p)
	}
	page, err := s.sandboxes.Snapshots(r.Context(), p, f)
	if err != nil {
		return 0, nil, err
	}
	out := []snapshotResponse{}
	for _, sn := range page.Snapshots {
		out = append(out, newSnapshotResponse(sn))
	}
	return http.StatusOK, paged{items: out, next: page.Next, running: -1}, nil
}

// snapshotName returns the name of a snapshot as it was given, without namespace and default tag.
func snapshotName(name string, p auth.Principal) string {
	return strings.TrimSuffix(stripNamespace(name, p), ":"+api.DefaultTag)
}

// snapshotNamed returns the newest snapshot with a name, "" if there is none.
func (s *Server) snapshotNamed(r *http.Request, p auth.Principal, name string) api.SnapshotID {
	page, err := s.sandboxes.Snapshots(r.Context(), p, api.SnapshotFilter{Name: snapshotName(name, p), Limit: 1})
	if err != nil || len(page.Snapshots) == 0 {
		return "" // the create, which was refused for its template, says why
	}
	return page.Snapshots[0].ID
}
