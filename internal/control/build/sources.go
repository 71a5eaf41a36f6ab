package build

import (
	"context"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

// resolveSources returns what the references of a build mean now: versions of templates, and images named by digest.
// Two builds with the same request and the same sources make the same template.
func (s *Service) resolveSources(ctx context.Context, p auth.Principal, spec Spec) ([]string, error) {
	var refs []string
	switch {
	case spec.Dockerfile != "":
		_, err := spec.parseDockerfile(func(ref string) (dockerfile.Base, error) {
			refs = append(refs, ref)
			return dockerfile.Base{}, nil
		})
		if err != nil {
			return []string{unpinned}, nil // the build itself reports the error
		}
	case spec.FromTemplate != "":
		refs = []string{spec.FromTemplate}
	case spec.ImageRef != "":
		refs = []string{spec.ImageRef}
	}
	var out []string
	for _, ref := range refs {
		t, err := s.templates.Resolve(ctx, p, ref)
		switch code := api.CodeOf(err); {
		case err == nil && t.BakedAt != nil:
			out = append(out, t.Host+" "+t.BakedAt.UTC().String())
		case err == nil:
			out = append(out, t.Host)
		case code != api.NotFound && code != api.Invalid:
			return nil, err
		case strings.Contains(ref, "@sha256:"):
			out = append(out, ref)
		default:
			out = append(out, unpinned)
		}
	}
	return out, nil
}
