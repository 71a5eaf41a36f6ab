package bake

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// inherited holds the start commands of the recipe that a published template derives from.
//
// The published template boots its own disks, so its bake has to run these commands itself. They are stored with the
// template: neither another version of the recipe nor the deletion of a template in between changes what a bake of
// its disks makes.
type inherited struct {
	Recipe  hostapi.TemplateName `json:"recipe"`
	Start   []Start              `json:"start"`
	Ready   string               `json:"ready,omitempty"`
	Warm    []string             `json:"warm,omitempty"`
	User    string               `json:"user"`
	Workdir string               `json:"workdir,omitempty"`
}

// spec is what a template is published from: the request, and the start commands that it inherits.
type spec struct {
	hostapi.Publish
	Inherited *inherited `json:"Under,omitempty"`
}

// inheritedFrom returns the start commands of a template, nil if it has none. deleted is set if the template was
// deleted.
func (b *Baker) inheritedFrom(name hostapi.TemplateName) (_ *inherited, deleted bool, err error) {
	if name == "" {
		return nil, false, nil
	}
	r, err := b.recipe(name)
	switch {
	case errors.Is(err, hostapi.ErrNotFound):
		return nil, true, nil
	case err != nil:
		return nil, false, err
	case r.spec != nil:
		return r.spec.Inherited, false, nil
	case len(r.Start) == 0:
		return nil, false, nil
	}
	out := &inherited{Recipe: r.Name, Ready: r.Ready, Warm: r.Warm, User: r.User, Workdir: r.Workdir}
	for _, s := range r.Start { // in the directory and as the user of its own template
		s.Spec.User, s.Spec.Dir = cmp.Or(s.Spec.User, r.User), cmp.Or(s.Spec.Dir, r.Workdir)
		out.Start = append(out.Start, s)
	}
	return out, false, nil
}

// warmUpInherited runs the inherited warm-up commands as their user. They also remove the files that Ready checks.
func (b *Baker) warmUpInherited(ctx context.Context, j *job, id hostapi.MachineID) error {
	if j.recipe.spec == nil || j.recipe.spec.Inherited == nil {
		return nil
	}
	u := j.recipe.spec.Inherited
	for _, command := range u.Warm {
		if err := b.exec(ctx, j, id, command, u.User); err != nil {
			return fmt.Errorf("warm-up of %s, %q: %w", u.Recipe, command, err)
		}
	}
	return nil
}
