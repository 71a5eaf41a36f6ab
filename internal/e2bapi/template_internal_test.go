package e2bapi

import (
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
)

// TestTemplateTimes: no template was made in the year 1, not even one that is not baked.
func TestTemplateTimes(t *testing.T) {
	began, made, baked := time.Unix(300, 0), time.Unix(100, 0), time.Unix(200, 0)
	s := &Server{began: began}
	for name, row := range map[string]struct {
		in               api.Template
		created, updated time.Time
	}{
		"recipe":      {api.Template{Name: "base"}, began, began},
		"recipe-made": {api.Template{Name: "base", Baked: true, BakedAt: &baked}, baked, baked},
		"built":       {api.Template{Name: "app", ID: "tpl1", Baked: true, BakedAt: &baked, CreatedAt: &made}, made, baked},
	} {
		if got := s.template(row.in); !got.CreatedAt.Equal(row.created) || !got.UpdatedAt.Equal(row.updated) {
			t.Errorf("%s: created at %v, updated at %v", name, got.CreatedAt, got.UpdatedAt)
		}
	}
}
