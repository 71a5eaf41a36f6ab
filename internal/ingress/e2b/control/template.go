package control

import (
	"net/http"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

type templateResponse struct {
	TemplateID    string     `json:"templateID"`
	BuildID       string     `json:"buildID"`
	CPUCount      int        `json:"cpuCount"`
	MemoryMB      int        `json:"memoryMB"`
	DiskSizeMB    int        `json:"diskSizeMB"`
	Public        bool       `json:"public"`
	Aliases       []string   `json:"aliases"`
	Names         []string   `json:"names"`
	CreatedAt     time.Time  `json:"createdAt"`
	UpdatedAt     time.Time  `json:"updatedAt"`
	CreatedBy     any        `json:"createdBy"`
	LastSpawnedAt *time.Time `json:"lastSpawnedAt"`
	SpawnCount    int        `json:"spawnCount"`
	BuildCount    int        `json:"buildCount"`
	EnvdVersion   string     `json:"envdVersion"`
	BuildStatus   string     `json:"buildStatus"`
}

func (s *Server) templateResponse(t api.Template) templateResponse {
	a := templateResponse{
		TemplateID: t.Name, BuildID: buildUUID(t.Name), CPUCount: t.CPU, MemoryMB: t.MemoryMB, DiskSizeMB: t.DiskMB,
		Public: t.IsGlobal, Aliases: []string{t.Name}, Names: []string{t.Name},
		EnvdVersion: s.cfg.AgentVersion, BuildStatus: "waiting",
		CreatedAt: s.started, UpdatedAt: s.started, // recipes are part of the program
	}
	if t.ID != "" {
		a.TemplateID, a.BuildID, a.BuildCount = string(t.ID), buildUUID(string(t.Version)), len(t.Versions)
	}
	if t.BakedAt != nil {
		a.CreatedAt, a.UpdatedAt, a.BuildCount = *t.BakedAt, *t.BakedAt, max(1, len(t.Versions))
	}
	if t.CreatedAt != nil {
		a.CreatedAt = *t.CreatedAt
	}
	switch {
	case t.Baked:
		a.BuildStatus = "ready"
	case t.Bake != nil && t.Bake.State == "running":
		a.BuildStatus = "building"
	case t.Bake != nil && t.Bake.State == "failed":
		a.BuildStatus = "error"
	}
	return a
}

func (s *Server) listTemplates(r *http.Request, p auth.Principal) (int, any, error) {
	if err := checkTeam(r.URL.Query().Get("teamID"), p); err != nil {
		return 0, nil, err
	}
	list, err := s.templates.List(r.Context(), p)
	out := []templateResponse{}
	for _, t := range list {
		out = append(out, s.templateResponse(t))
	}
	return http.StatusOK, out, err
}

func (s *Server) getTemplate(r *http.Request, p auth.Principal) (int, any, error) {
	t, err := s.templates.Get(r.Context(), p, stripNamespace(r.PathValue("id"), p))
	return http.StatusOK, s.templateResponse(t), err
}

func (s *Server) alias(r *http.Request, p auth.Principal) (int, any, error) {
	t, err := s.templates.Get(r.Context(), p, stripNamespace(r.PathValue("alias"), p))
	return http.StatusOK, map[string]any{"templateID": s.templateResponse(t).TemplateID, "public": t.IsGlobal}, err
}

// changeTemplate accepts a request that leaves the visibility of a template as it is, and refuses to change it.
func (s *Server) changeTemplate(r *http.Request, p auth.Principal) (int, any, error) {
	var in struct {
		Public *bool `json:"public"`
	}
	if err := s.decode(r, &in); err != nil {
		return 0, nil, err
	}
	t, err := s.templates.Get(r.Context(), p, stripNamespace(r.PathValue("id"), p))
	if err != nil {
		return 0, nil, err
	}
	if in.Public != nil && *in.Public != t.IsGlobal {
		return 0, nil, api.Errorf(
			api.Unsupported,
			"public: who may use a template is said when it is built, by the native API's field global",
		)
	}
	return http.StatusOK, map[string]any{"names": s.templateResponse(t).Names}, nil
}

// deleteTemplate deletes a built template or, as the protocol has it, a snapshot.
func (s *Server) deleteTemplate(r *http.Request, p auth.Principal) (int, any, error) {
	id := r.PathValue("id")
	if !strings.HasPrefix(id, "snp") {
		return http.StatusNoContent, nil, s.templates.Delete(r.Context(), p, stripNamespace(id, p))
	}
	return http.StatusNoContent, nil, s.sandboxes.DeleteSnapshot(r.Context(), p, api.SnapshotID(id))
}
