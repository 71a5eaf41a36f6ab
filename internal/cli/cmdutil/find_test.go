package cmdutil_test

import (
	"context"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// lister lists sandboxes by id with their names.
type lister map[string]string

func (l lister) List(context.Context, api.SandboxFilter) (all []api.Sandbox, _ error) {
	for id, name := range l {
		all = append(all, api.Sandbox{ID: api.SandboxID(id), Metadata: map[string]string{"name": name}})
	}
	return all, nil
}

func TestFindSandbox(t *testing.T) {
	one, two, three := "sbxaa"+strings.Repeat("0", 18), "sbxab"+strings.Repeat("0", 18), "sbxb"+strings.Repeat("0", 19)
	all := lister{one: "web", two: "same", three: "same"}
	for _, tt := range []struct {
		text, want string
		code       api.Code
	}{
		{one, one, ""}, {"web", one, ""}, {"sbxaa", one, ""}, {"sbxb", three, ""},
		{"sbxa", "", api.Conflict}, {"same", "", api.Conflict}, {"sbx", "", api.NotFound}, {"none", "", api.NotFound},
		{"", "", api.NotFound}, {"sbxz" + strings.Repeat("0", 19), "sbxz" + strings.Repeat("0", 19), ""},
	} {
		got, err := cmdutil.FindSandbox(t.Context(), all, tt.text)
		if string(got) != tt.want || api.CodeOf(err) != tt.code {
			t.Errorf("FindSandbox(%q) = %q, %v, want %q and the code %q", tt.text, got, err, tt.want, tt.code)
		}
	}
}
