package sandbox

import (
	"encoding/json"
	"strings"

	"github.com/pandastack/pandastack/api"
)

// Variables by which programs in a sandbox find out where they run. Each sandbox has its own values: its children and
// sandboxes made from its snapshots have others.
const (
	idVariable       = "PANDASTACK_SANDBOX_ID"
	templateVariable = "PANDASTACK_TEMPLATE"
)

// decodeInjected reads variables and files to inject. A text that cannot be read injects nothing.
func decodeInjected(text string) *api.Injected {
	var in *api.Injected
	if text == "" || json.Unmarshal([]byte(text), &in) != nil {
		return nil
	}
	return in
}

func encodeInjected(in *api.Injected) string {
	if in == nil {
		return ""
	}
	return encodeJSON(in)
}

// inject returns values with the sandbox's id in the place of the placeholder.
func (r *record) inject(values map[string]string) map[string]string {
	out := make(map[string]string, len(values))
	for name, value := range values {
		out[name] = strings.ReplaceAll(value, api.SandboxIDPlaceholder, string(r.ID))
	}
	return out
}

// environment returns the variables that processes of a sandbox start with, in addition to the template's.
func (r *record) environment() map[string]string {
	var injected map[string]string
	if r.Injected != nil {
		injected = r.inject(r.Injected.Env)
	}
	return mergeMaps(r.Env, injected, map[string]string{idVariable: string(r.ID), templateVariable: r.Template})
}

// injectedFiles returns the small files that a sandbox has at every start, by path.
func (r *record) injectedFiles() map[string]string {
	if r.Injected == nil || len(r.Injected.Files) == 0 {
		return nil
	}
	return r.inject(r.Injected.Files)
}
