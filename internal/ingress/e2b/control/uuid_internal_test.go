package control

import (
	"regexp"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
)

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// TestBuildsHaveUUIDs checks that the UUID of every build leads back to it.
func TestBuildsHaveUUIDs(t *testing.T) {
	ids := []api.BuildID{"bld00000000000000000000", "bldzzzzzzzzzzzzzzzzzzzz"}
	for range 1000 {
		ids = append(ids, api.NewBuildID())
	}
	seen := map[string]bool{}
	for _, id := range ids {
		u := buildUUID(string(id))
		got, err := parseBuildID(u)
		if !uuidForm.MatchString(u) || seen[u] || err != nil || got != id {
			t.Fatalf("build %s has UUID %s, of build %s, %v; want a UUID of its own that leads back", id, u, got, err)
		}
		seen[u] = true
		if got, err := parseBuildID(strings.ToUpper(u)); err != nil || got != id {
			t.Errorf("parseBuildID(%s) = %s, %v, want %s", strings.ToUpper(u), got, err, id)
		}
		if got, err := parseBuildID(string(id)); err != nil || got != id {
			t.Errorf("parseBuildID(%s) = %s, %v, want it", id, got, err)
		}
	}
	if u := buildUUID("base"); !uuidForm.MatchString(u) || u != buildUUID("base") || u == buildUUID("browser") {
		t.Errorf("a recipe has UUID %s, want one of its own that stays", u)
	}
	for _, text := range []string{
		"", "bld", buildUUID("base"), "00000000-0000-4000-8000-000000000000", "ffffffff-ffff-80ff-80ff-ffffffffff00",
		"zzzzzzzz-0000-8000-8000-000000000000", "000000000000-8000-8000-0000-00000000",
	} {
		if id, err := parseBuildID(text); api.CodeOf(err) != api.NotFound {
			t.Errorf("parseBuildID(%q) = %s, %v, want not found", text, id, err)
		}
	}
}
