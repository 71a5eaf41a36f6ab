// Package template is what users see of templates: their list, their other names, and the start of a
// bake. Hosts own what is baked; this package asks them. All methods may be called at once.
package template

import (
	"context"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/auth"
)

// Service answers questions about templates.
type Service struct{}

var errLater = api.Errorf(api.Unsupported, "not there yet")

// List answers all templates that the caller may use, by name.
func (s *Service) List(ctx context.Context, p auth.Principal) ([]api.Template, error) {
	return nil, errLater
}

// Get answers a template by name or alias.
func (s *Service) Get(ctx context.Context, p auth.Principal, name string) (api.Template, error) {
	return api.Template{}, errLater
}

// Bake begins to bake a template, or joins a bake under way, and answers the template with its progress.
// Only an admin may force a new bake of one that is baked.
func (s *Service) Bake(ctx context.Context, p auth.Principal, name string, req api.BakeRequest) (api.Template, error) {
	return api.Template{}, errLater
}
