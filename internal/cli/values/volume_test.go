package values

import (
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
)

func TestVolumeMounts(t *testing.T) {
	got, err := VolumeMounts([]string{"data", "data:/srv", "data:ro", "data:/srv/a:ro"})
	want := []api.VolumeMount{
		{Name: "data"},
		{Name: "data", MountPath: "/srv"},
		{Name: "data", ReadOnly: true},
		{Name: "data", MountPath: "/srv/a", ReadOnly: true},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, wrong := range []string{"", ":/srv", "a b", "data:srv", "data:/proc/x", "data:/srv/..", "data:/srv:rw"} {
		if got, err := VolumeMounts([]string{wrong}); err == nil || !strings.Contains(err.Error(), "--volume") {
			t.Errorf("%q gives %+v, %v", wrong, got, err)
		}
	}
}
