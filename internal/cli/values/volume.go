package values

import (
	"fmt"
	"strings"

	"github.com/pandastack/pandastack/api"
)

// VolumeMounts reads volumes to attach, each as NAME[:DIRECTORY][:ro].
func VolumeMounts(list []string) ([]api.VolumeMount, error) {
	var all []api.VolumeMount
	for _, text := range list {
		name, rest, _ := strings.Cut(text, ":")
		m := api.VolumeMount{Name: name}
		if before, ok := strings.CutSuffix(":"+rest, ":ro"); ok {
			m.ReadOnly, rest = true, strings.TrimPrefix(before, ":")
		}
		m.MountPath = rest
		err := m.Validate()
		if err == nil && strings.Contains(rest, ":") {
			err = fmt.Errorf("the directory %q contains a colon", rest)
		}
		if err != nil {
			return nil, fmt.Errorf("--volume %s: %w; use NAME[:DIRECTORY][:ro]", text, err)
		}
		all = append(all, m)
	}
	return all, nil
}
