package sandbox

import (
	"encoding/json"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Variables by which programs in a sandbox find out where they are. They are of one sandbox: its children and what is
// made from its snapshots have their own.
const (
	idVariable       = "PANDASTACK_SANDBOX_ID"
	templateVariable = "PANDASTACK_TEMPLATE"
)

// surroundingsLabel is under which label a snapshot carries surroundings to other hosts.
const surroundingsLabel = "surroundings"

// setSurroundings puts into a row what a face promises to programs in its sandbox.
func setSurroundings(r *store.Sandbox, in *api.Surroundings) error {
	if in == nil {
		return nil
	}
	data, err := json.Marshal(in)
	r.Surroundings = string(data)
	return err
}

// surroundings gives what was promised, with the sandbox's own id put in. A row that cannot be read promises nothing.
func surroundings(r *store.Sandbox) api.Surroundings {
	var in api.Surroundings
	if r.Surroundings == "" || json.Unmarshal([]byte(r.Surroundings), &in) != nil {
		return api.Surroundings{}
	}
	for _, m := range []map[string]string{in.Env, in.Files} {
		for name, value := range m {
			m[name] = strings.ReplaceAll(value, api.OwnID, r.ID)
		}
	}
	return in
}

// environment is what processes of a sandbox begin with besides what its template says.
func environment(r *store.Sandbox) map[string]string {
	return merge(r.Env, surroundings(r).Env, map[string]string{idVariable: r.ID, templateVariable: r.Template})
}

// files are small files that a sandbox finds at every start, by path.
func files(r *store.Sandbox) map[string]string { return surroundings(r).Files }
