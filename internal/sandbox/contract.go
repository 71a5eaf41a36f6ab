package sandbox

import "github.com/pandastack/pandastack/internal/store"

// Variables by which programs in a sandbox find out where they are. They are of one sandbox: its children and what is
// made from its snapshots have their own.
const (
	idVariable       = "PANDASTACK_SANDBOX_ID"
	templateVariable = "PANDASTACK_TEMPLATE"
)

// What E2B promises to programs in its sandboxes: it is kept where e2bMark is set. Each variable is also a file.
const (
	e2bMark     = "E2B_SANDBOX"
	e2bID       = "E2B_SANDBOX_ID"
	e2bTemplate = "E2B_TEMPLATE_ID"
	e2bFiles    = "/run/e2b/."
)

// environment is what processes of a sandbox begin with besides what its template says.
func environment(r *store.Sandbox) map[string]string {
	env := merge(r.Env, map[string]string{idVariable: r.ID, templateVariable: r.Template})
	if env[e2bMark] != "" {
		env[e2bID] = r.ID
	}
	return env
}

// files are small files that a sandbox finds at every start, by path.
func files(r *store.Sandbox) map[string]string {
	if r.Env[e2bMark] == "" {
		return nil
	}
	env, out := environment(r), map[string]string{}
	for _, name := range []string{e2bMark, e2bID, e2bTemplate} {
		out[e2bFiles+name] = env[name]
	}
	return out
}
