package control

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/build"
)

// launches is a Builds that keeps the last build that was started.
type launches struct {
	Builds
	spec build.Spec
}

func (l *launches) StartReserved(_ context.Context, _ auth.Principal, _ api.BuildID, change func(*build.Spec)) error {
	l.spec = build.Spec{}
	change(&l.spec)
	return nil
}

// TestBaseOfBuilds checks that the base image of E2B's builder becomes our base template.
func TestBaseOfBuilds(t *testing.T) {
	l := &launches{}
	s := &Server{cfg: Config{Builds: l}}
	for body, want := range map[string][2]string{ // image, template
		`{"fromImage":"e2bdev/base"}`:        {"", "base"},
		`{"fromImage":"e2bdev/base:latest"}`: {"", "base"},
		`{"fromImage":"e2bdev/base:other"}`:  {"e2bdev/base:other", ""},
		`{"fromTemplate":"a/mine"}`:          {"", "mine"},
	} {
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.SetPathValue("build", string(api.NewBuildID()))
		status, _, err := s.startBuild(r, auth.Principal{Workspace: "a"})
		if got := [2]string{l.spec.ImageRef, l.spec.FromTemplate}; err != nil || status != 202 || got != want ||
			l.spec.OnBase != (want[1] != "") {
			t.Errorf("%s: got %d, %v with image and template %q, want 202 and %q", body, status, err, got, want)
		}
	}
}

// TestTemplateTimes checks that every template has times, also one that is not baked.
func TestTemplateTimes(t *testing.T) {
	began, made, baked := time.Unix(300, 0), time.Unix(100, 0), time.Unix(200, 0)
	s := &Server{started: began}
	for name, row := range map[string]struct {
		in               api.Template
		created, updated time.Time
	}{
		"recipe":      {api.Template{Name: "base"}, began, began},
		"recipe-made": {api.Template{Name: "base", Baked: true, BakedAt: &baked}, baked, baked},
		"built": {api.Template{Name: "app", ID: "tpl1", Baked: true, BakedAt: &baked,
			CreatedAt: &made}, made, baked},
	} {
		if got := s.templateResponse(row.in); !got.CreatedAt.Equal(row.created) || !got.UpdatedAt.Equal(row.updated) {
			t.Errorf("%s: created at %v, updated at %v; want %v, %v", name, got.CreatedAt, got.UpdatedAt,
				row.created, row.updated)
		}
	}
}
