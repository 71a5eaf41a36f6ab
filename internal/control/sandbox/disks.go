package sandbox

import (
	"encoding/json"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
)

// encodeDisks gives a machine's data disks as its sandbox's row keeps them: in the words of users.
func encodeDisks(all []hostapi.DataDisk) string {
	if len(all) == 0 {
		return ""
	}
	disks := make([]api.DataDisk, 0, len(all))
	for _, d := range all {
		disks = append(disks, api.DataDisk{Name: d.Name, SizeMB: d.SizeMiB, MountPath: d.Mount})
	}
	data, err := json.Marshal(disks)
	if err != nil { // structs of strings and numbers always marshal
		return ""
	}
	return string(data)
}

// viewDisks gives a row's data disks as users see them.
func viewDisks(r *store.Sandbox) []api.DataDisk {
	if r.DataDisks == "" {
		return nil
	}
	var disks []api.DataDisk
	if err := json.Unmarshal([]byte(r.DataDisks), &disks); err != nil {
		return nil // they are told, and nothing is done with them
	}
	return disks
}
