package control

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/ingress/access"
)

// Builds are the methods of *build.Service that this API uses.
type Builds interface {
	Reserve(ctx context.Context, p auth.Principal, req api.BuildRequest) (api.Build, error)
	StartReserved(ctx context.Context, p auth.Principal, id api.BuildID, change func(*build.Spec)) error
	Get(ctx context.Context, p auth.Principal, id api.BuildID) (api.Build, error)
	Logs(
		ctx context.Context,
		p auth.Principal,
		id api.BuildID,
		after int64,
		follow bool,
		yield func(api.BuildLine) error,
	) error
	HasFiles(ctx context.Context, p auth.Principal, hash string) (bool, error)
	PutFiles(ctx context.Context, p auth.Principal, hash string, r io.Reader) error
}

// uploadTTL is how long the address of an upload is valid.
const uploadTTL = time.Hour

// baseImage is what E2B's builder starts from when its user names nothing. baseTemplate stands in for it.
const (
	baseImage    = "e2bdev/base"
	baseTemplate = "base"
)

// maxLogs is how many entries of a log one response has at most.
const maxLogs = 100

// aliasOrTags serves /templates/aliases/{alias} and /templates/{id}/tags, which net/http can only match by one pattern.
func (s *Server) aliasOrTags(r *http.Request, p auth.Principal) (int, any, error) {
	switch {
	case r.PathValue("id") == "aliases":
		r.SetPathValue("alias", r.PathValue("part"))
		return s.alias(r, p)
	case r.PathValue("part") == "tags":
		return s.listTags(r, p)
	}
	return 0, nil, api.Errorf(api.NotFound, "no such path: %s", r.URL.Path)
}

func (s *Server) builder() (Builds, error) {
	if s.cfg.Builds == nil {
		return nil, api.Errorf(api.Unsupported, "template builds are not supported by this server")
	}
	return s.cfg.Builds, nil
}

// stripNamespace removes the caller's namespace from a name.
func stripNamespace(name string, p auth.Principal) string {
	if space, rest, ok := strings.Cut(name, "/"); ok && space == string(p.Workspace) {
		return rest
	}
	return name
}

type newTemplate struct {
	Name      string   `json:"name"`
	Alias     string   `json:"alias"`
	Tags      []string `json:"tags"`
	CPUCount  int      `json:"cpuCount"`
	MemoryMB  int      `json:"memoryMB"`
	MinFreeMB *int     `json:"minFreeDiskMb"`
	TeamID    string   `json:"teamID"`
}

func (s *Server) newTemplate(r *http.Request, p auth.Principal) (int, any, error) {
	var in newTemplate
	b, err := s.builder()
	if err == nil {
		err = s.decode(r, &in)
	}
	if err == nil {
		err = checkTeam(in.TeamID, p)
	}
	if err == nil && in.MinFreeMB != nil {
		err = api.Errorf(
			api.Unsupported,
			"minFreeDiskMb is not supported by this server: a template has the disk of what it is made from",
		)
	}
	if err != nil {
		return 0, nil, err
	}
	if in.Name == "" {
		in.Name = in.Alias
	}
	name, tag := api.SplitTemplate(stripNamespace(in.Name, p))
	if tag != "" {
		in.Tags = append(in.Tags, tag)
	}
	made, err := b.Reserve(
		r.Context(),
		p,
		api.BuildRequest{Name: name, Tags: in.Tags, CPU: in.CPUCount, MemoryMB: in.MemoryMB, Replace: true},
	)
	if len(in.Tags) == 0 {
		in.Tags = []string{api.DefaultTag}
	}
	return http.StatusAccepted, map[string]any{
		"templateID": made.TemplateID, "buildID": buildUUID(string(made.ID)), "public": false,
		"names": []string{string(p.Workspace) + "/" + name}, "tags": in.Tags, "aliases": []string{name},
	}, err
}

// uploadLink returns where to upload the files with a hash, unless they were uploaded before.
func (s *Server) uploadLink(r *http.Request, p auth.Principal) (int, any, error) {
	b, err := s.builder()
	if err != nil {
		return 0, nil, err
	}
	hash := r.PathValue("hash")
	there, err := b.HasFiles(r.Context(), p, hash)
	if err != nil || there {
		return http.StatusCreated, map[string]any{"present": true}, err
	}
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	ticket := s.ticket(string(p.Workspace), hash, time.Now().Add(uploadTTL))
	to := url.URL{
		Scheme:   scheme,
		Host:     r.Host,
		Path:     "/templates/uploads/" + hash,
		RawQuery: url.Values{"ticket": {ticket}}.Encode(),
	}
	return http.StatusCreated, map[string]any{"present": false, "url": to.String()}, nil
}

// ticket returns a credential to upload the files with a hash to a workspace until a time.
func (s *Server) ticket(workspace, hash string, until time.Time) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(workspace)) + "." + strconv.FormatInt(until.Unix(), 10)
	mac := hmac.New(sha256.New, s.cfg.Secret)
	fmt.Fprintf(mac, "upload:%s:%s", text, hash) // a hash never returns an error
	return text + "." + hex.EncodeToString(mac.Sum(nil))
}

// upload takes files with a ticket in the place of a key: clients send no key to upload addresses.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	call := access.Call{
		Face: access.E2B, Pattern: uploadPattern, Target: r.PathValue("hash"), Status: http.StatusOK, Began: time.Now(),
	}
	b, err := s.builder()
	if err == nil {
		call.Principal, err = s.putFiles(r, b)
	}
	if err != nil {
		call.Status = api.CodeOf(err).Info().Status
		if call.Status == http.StatusUnauthorized {
			s.cfg.Guard.Failed(r)
		}
		writeError(w, err)
	} else {
		w.WriteHeader(http.StatusOK)
	}
	s.cfg.Guard.Record(r, call)
}

// putFiles takes the files of an upload and returns for whom.
func (s *Server) putFiles(r *http.Request, b Builds) (p auth.Principal, err error) {
	hash, ticket := r.PathValue("hash"), r.URL.Query().Get("ticket")
	parts := strings.Split(ticket, ".")
	if len(parts) != 3 {
		return p, api.Errorf(api.Unauthenticated, "the address of the upload is not whole")
	}
	workspace, err1 := base64.RawURLEncoding.DecodeString(parts[0])
	until, err2 := strconv.ParseInt(parts[1], 10, 64)
	if errors.Join(err1, err2) != nil ||
		!hmac.Equal([]byte(ticket), []byte(s.ticket(string(workspace), hash, time.Unix(until, 0)))) {
		return p, api.Errorf(api.Unauthenticated, "the address of the upload does not hold")
	}
	if time.Now().Unix() > until {
		return p, api.Errorf(api.Unauthenticated, "the address of the upload has expired: ask for another")
	}
	p = auth.Principal{Workspace: api.Workspace(workspace), KeyPrefix: "upload address"}
	return p, b.PutFiles(r.Context(), p, hash, r.Body)
}

type registry struct {
	Type     string `json:"type"`
	Username string `json:"username"`
	Password string `json:"password"`
}

// DecidesAccess implements lenient.Strict.
func (registry) DecidesAccess() {}

type buildStart struct {
	FromImage    string    `json:"fromImage"`
	FromTemplate string    `json:"fromTemplate"`
	Registry     *registry `json:"fromImageRegistry"`
	Force        bool      `json:"force"`
	Steps        []struct {
		Type      string   `json:"type"`
		Args      []string `json:"args"`
		FilesHash string   `json:"filesHash"`
		Force     bool     `json:"force"`
	} `json:"steps"`
	StartCmd string `json:"startCmd"`
	ReadyCmd string `json:"readyCmd"`
}

// buildID returns the id of the build in the path.
func buildID(r *http.Request) (api.BuildID, error) { return parseBuildID(r.PathValue("build")) }

func (s *Server) startBuild(r *http.Request, p auth.Principal) (int, any, error) {
	var in buildStart
	b, err := s.builder()
	if err == nil {
		err = s.decode(r, &in)
	}
	if err != nil {
		return 0, nil, err
	}
	id, err := buildID(r)
	if err != nil {
		return 0, nil, err
	}
	if in.Registry != nil && in.Registry.Type != "registry" && in.Registry.Type != "" {
		return 0, nil, api.Errorf(
			api.Unsupported,
			"fromImageRegistry of type %.40q is not supported by this server: use a user and password",
			in.Registry.Type,
		)
	}
	if strings.TrimSuffix(in.FromImage, ":latest") == baseImage {
		in.FromImage, in.FromTemplate = "", baseTemplate
	}
	return http.StatusAccepted, nil, b.StartReserved(r.Context(), p, id, func(spec *build.Spec) {
		spec.ImageRef, spec.FromTemplate = in.FromImage, stripNamespace(in.FromTemplate, p)
		spec.OnBase = in.FromTemplate != ""
		spec.Start, spec.Ready, spec.NoCache = in.StartCmd, in.ReadyCmd, in.Force
		if in.Registry != nil {
			spec.Registry = &api.RegistryAuth{Username: in.Registry.Username, Password: in.Registry.Password}
		}
		for _, step := range in.Steps {
			spec.Steps = append(
				spec.Steps,
				build.Step{Type: step.Type, Args: step.Args, Files: step.FilesHash, Force: step.Force},
			)
		}
	})
}

type buildEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Message   string    `json:"message"`
	Level     string    `json:"level"`
	Step      string    `json:"step,omitempty"`
}

// errStop ends the reading of a log.
var errStop = errors.New("enough")

func (s *Server) buildStatus(r *http.Request, p auth.Principal) (int, any, error) {
	b, err := s.builder()
	if err != nil {
		return 0, nil, err
	}
	id, err := buildID(r)
	if err != nil {
		return 0, nil, err
	}
	q := r.URL.Query()
	offset, err := intParam(q, "logsOffset", 1<<40, 0)
	if err != nil {
		return 0, nil, err
	}
	limit, err := intParam(q, "limit", maxLogs, maxLogs)
	if err != nil {
		return 0, nil, err
	}
	least, err := parseLevel(q)
	if err != nil {
		return 0, nil, err
	}
	got, err := b.Get(r.Context(), p, id)
	if err != nil {
		return 0, nil, err
	}
	logs, entries := []string{}, []buildEntry{}
	err = b.Logs(r.Context(), p, id, offset, false, func(l api.BuildLine) error {
		if int64(len(entries)) == limit {
			return errStop
		}
		if slices.Index(levels, l.Level) < least {
			return nil
		}
		logs = append(logs, l.Line)
		entries = append(entries, buildEntry{Timestamp: l.Time, Message: l.Line, Level: l.Level, Step: l.Step})
		return nil
	})
	if err != nil && !errors.Is(err, errStop) {
		return 0, nil, err
	}
	out := map[string]any{
		"templateID": got.TemplateID,
		"buildID":    buildUUID(string(got.ID)),
		"status":     "building",
		"logs":       logs,
		"logEntries": entries,
	}
	switch got.Status {
	case api.BuildDone:
		out["status"] = "ready"
	case api.BuildFailed:
		out["status"] = "error"
		reason := map[string]any{"message": got.Error}
		if n, _, ok := strings.Cut(got.Step, "/"); ok {
			reason["step"] = n
		}
		out["reason"] = reason
	case api.BuildQueued, api.BuildRunning, api.BuildBaking:
	}
	return http.StatusOK, out, nil
}

func (s *Server) assignTags(r *http.Request, p auth.Principal) (int, any, error) {
	var in struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := s.decode(r, &in); err != nil {
		return 0, nil, err
	}
	name, tag := api.SplitTemplate(stripNamespace(in.Target, p))
	t, err := s.templates.Tag(r.Context(), p, name, api.TagRequest{Target: tag, Tags: in.Tags})
	return http.StatusCreated, map[string]any{"buildID": buildUUID(string(t.Version)), "tags": in.Tags}, err
}

func (s *Server) removeTags(r *http.Request, p auth.Principal) (int, any, error) {
	var in struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := s.decode(r, &in); err != nil {
		return 0, nil, err
	}
	for _, tag := range in.Tags {
		if err := s.templates.Untag(r.Context(), p, stripNamespace(in.Name, p), tag); err != nil {
			return 0, nil, err
		}
	}
	return http.StatusNoContent, nil, nil
}

func (s *Server) listTags(r *http.Request, p auth.Principal) (int, any, error) {
	t, err := s.templates.Get(r.Context(), p, stripNamespace(r.PathValue("id"), p))
	out := []map[string]any{}
	for _, v := range t.Versions {
		for _, tag := range v.Tags {
			out = append(out, map[string]any{"tag": tag, "buildID": buildUUID(string(v.ID)), "createdAt": v.CreatedAt})
		}
	}
	return http.StatusOK, out, err
}
