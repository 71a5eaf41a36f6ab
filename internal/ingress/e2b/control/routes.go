package control

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// route is a route for authenticated callers: its handler, and the names that it reads from the query, space-separated.
type route struct {
	handle handler
	query  string
}

func (s *Server) routes() error {
	all := s.handle("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, part := range []map[string]route{
		s.sandboxRoutes(), s.templateRoutes(), s.volumeRoutes(), unsupportedRoutes(),
	} {
		for pattern, rt := range part {
			all = errors.Join(all, s.handle(pattern, s.authenticated(pattern, rt)))
		}
	}
	return errors.Join(all, s.handle(uploadPattern, s.upload))
}

const uploadPattern = "PUT /templates/uploads/{hash}"

func (s *Server) sandboxRoutes() map[string]route {
	return map[string]route{
		"POST /sandboxes":                 {s.createV1, ""},
		"POST /v2/sandboxes":              {s.createV2, ""},
		"GET /sandboxes":                  {s.listV1, "metadata"},
		"GET /v2/sandboxes":               {s.listV2, "metadata state limit nextToken order startedAfter template"},
		"GET /sandboxes/metrics":          {s.metricsOfMany, "sandbox_ids"},
		"GET /sandboxes/{id}":             {s.get, ""},
		"DELETE /sandboxes/{id}":          {s.kill, ""},
		"POST /sandboxes/{id}/connect":    {s.connect, ""},
		"POST /v2/sandboxes/{id}/connect": {s.connect, ""},
		"POST /sandboxes/{id}/resume":     {s.resume, ""},
		"POST /sandboxes/{id}/pause":      {s.pause, ""},
		"POST /sandboxes/{id}/fork":       {s.fork, ""},
		"POST /sandboxes/{id}/timeout":    {s.timeout, ""},
		"POST /sandboxes/{id}/refreshes":  {s.refresh, ""},
		"PUT /sandboxes/{id}/network":     {s.setNetwork, ""},
		"GET /sandboxes/{id}/metrics":     {s.metrics, "start end"},
		"GET /sandboxes/{id}/logs":        {s.logsV1, "start limit"},
		"GET /v2/sandboxes/{id}/logs":     {s.logsV2, "cursor limit direction level search"},
		"POST /sandboxes/{id}/snapshots":  {s.snapshot, ""},
		"GET /snapshots":                  {s.snapshots, "sandboxID name limit nextToken"},
		"GET /teams":                      {s.teams, ""},
	}
}

func (s *Server) templateRoutes() map[string]route {
	return map[string]route{
		"GET /templates":                            {s.listTemplates, "teamID"},
		"GET /v2/templates":                         {s.listTemplates, "teamID"},
		"GET /templates/{id}":                       {s.getTemplate, ""},
		"PATCH /templates/{id}":                     {s.changeTemplate, ""},
		"PATCH /v2/templates/{id}":                  {s.changeTemplate, ""},
		"DELETE /templates/{id}":                    {s.deleteTemplate, ""},
		"POST /v3/templates":                        {s.newTemplate, ""},
		"GET /templates/{id}/files/{hash}":          {s.uploadLink, ""},
		"POST /v2/templates/{id}/builds/{build}":    {s.startBuild, ""},
		"GET /templates/{id}/builds/{build}/status": {s.buildStatus, "logsOffset limit level"},
		"GET /templates/{id}/builds/{build}/logs":   {s.buildStatus, "logsOffset limit level"},
		"POST /templates/tags":                      {s.assignTags, ""},
		"DELETE /templates/tags":                    {s.removeTags, ""},
		"GET /templates/{id}/{part}":                {s.aliasOrTags, ""},
	}
}

// unsupportedPatterns are the paths of the protocol that this server does not implement, by what they are about. The
// error names that, so that clients do not take it for a wrong address.
var unsupportedPatterns = map[string][]string{
	"secrets": {
		"GET /secrets",
		"POST /secrets",
		"GET /secrets/{id}",
		"POST /secrets/{id}",
		"DELETE /secrets/{id}",
	},
	"metrics of teams":                   {"GET /teams/{id}/metrics", "GET /teams/{id}/metrics/max"},
	"the older forms of template builds": {"POST /templates", "POST /v2/templates"},
}

func unsupportedRoutes() map[string]route {
	out := map[string]route{}
	for what, patterns := range unsupportedPatterns {
		for _, pattern := range patterns {
			out[pattern] = route{unsupported(what), "*"}
		}
	}
	return out
}

// checkQuery refuses a query with names that the route does not read.
func (rt route) checkQuery(q url.Values) error {
	if rt.query == "*" {
		return nil
	}
	known := strings.Fields(rt.query)
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(known, name) {
			return api.Errorf(api.Invalid, "%.60q is not supported in this query: leave it out", name)
		}
	}
	return nil
}

// checkTeam refuses to act for a team that is not the caller's. Clients name the team that GET /teams returned.
func checkTeam(team string, p auth.Principal) error {
	if team != "" && team != string(p.Workspace) {
		return api.Errorf(api.Forbidden, "teamID: the key is of team %s, not of %.60q", p.Workspace, team)
	}
	return nil
}
