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

// injectedLabel is under which label a snapshot carries surroundings to other hosts.
const injectedLabel = "surroundings"

// setInjected puts into a row what a face promises to programs in its sandbox.
func setInjected(r *store.Sandbox, in *api.Injected) error {
	if in == nil {
		return nil
	}
	data, err := json.Marshal(in)
	r.Injected = string(data)
	return err
}

// injected gives what was promised, with the sandbox's own id put in. A row that cannot be read promises nothing.
func injected(r *store.Sandbox) api.Injected {
	var in api.Injected
	if r.Injected == "" || json.Unmarshal([]byte(r.Injected), &in) != nil {
		return api.Injected{}
	}
	for _, m := range []map[string]string{in.Env, in.Files} {
		for name, value := range m {
			m[name] = strings.ReplaceAll(value, api.SandboxIDPlaceholder, r.ID)
		}
	}
	return in
}

// environment is what processes of a sandbox begin with besides what its template says.
func environment(r *store.Sandbox) map[string]string {
	return mergeMaps(r.Env, injected(r).Env, map[string]string{idVariable: r.ID, templateVariable: r.Template})
}

// injectedFiles are small files that a sandbox finds at every start, by path.
func injectedFiles(r *store.Sandbox) map[string]string { return injected(r).Files }
