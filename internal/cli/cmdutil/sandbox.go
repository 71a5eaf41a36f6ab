package cmdutil

import (
	"context"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

// minPrefix is the length from which text is taken for the begin of an id: that of "sbx" and one more.
const minPrefix = 4

// SandboxLister lists sandboxes; *client.Sandboxes does.
type SandboxLister interface {
	List(ctx context.Context, f api.SandboxFilter) ([]api.Sandbox, error)
}

var _ SandboxLister = (*client.Sandboxes)(nil)

// FindSandbox returns the id of the sandbox that a user means.
//
// It is given by its id, by the name in its metadata (the value of "name"), or by the begin of its id if no other id
// begins so. A whole id is not looked up.
func FindSandbox(ctx context.Context, s SandboxLister, text string) (api.SandboxID, error) {
	id, invalid := api.ParseSandboxID(text)
	if invalid == nil {
		return id, nil
	}
	if text == "" {
		return "", invalid
	}
	all, err := s.List(ctx, api.SandboxFilter{})
	if err != nil {
		return "", err
	}
	var named, begin []string
	for _, one := range all {
		if one.Metadata["name"] == text {
			named = append(named, string(one.ID))
		}
		if len(text) >= minPrefix && strings.HasPrefix(string(one.ID), text) {
			begin = append(begin, string(one.ID))
		}
	}
	found := named
	if len(found) == 0 {
		found = begin
	}
	switch len(found) {
	case 0:
		return "", api.Errorf(api.NotFound, "sandbox %.60q not found: give its id, the name in its metadata, or the "+
			"begin of its id", text)
	case 1:
		return api.SandboxID(found[0]), nil
	}
	slices.Sort(found)
	return "", api.Errorf(api.Conflict, "%.60q is %d sandboxes: %s", text, len(found), strings.Join(found, ", "))
}
