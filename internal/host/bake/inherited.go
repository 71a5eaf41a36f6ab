package bake

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// inherited is what runs on in the recipe that a published template descends from, and what it takes to have that
// run: the published one boots its own disks, on which nothing of it runs. It is kept with the template, so that neither
// another version of the recipe nor the end of a template between them changes what a bake from its disks makes.
type inherited struct {
	Recipe  hostapi.TemplateName `json:"recipe"`
	Start   []Start              `json:"start"`
	Ready   string               `json:"ready,omitempty"`
	Warm    []string             `json:"warm,omitempty"`
	User    string               `json:"user"`
	Workdir string               `json:"workdir,omitempty"`
}

// spec is what a template is published from: the request, and what runs beside what that asks for.
type spec struct {
	hostapi.Publish
	Inherited *inherited `json:"Under,omitempty"`
}

// inheritedFrom gives what runs on in a template, nil if nothing does. gone: there is no such template any more.
func (b *Baker) inheritedFrom(name hostapi.TemplateName) (_ *inherited, gone bool, err error) {
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
	for _, s := range r.Start { // in the place and as the user that it has in its own template
		s.Spec.User, s.Spec.Dir = cmp.Or(s.Spec.User, r.User), cmp.Or(s.Spec.Dir, r.Workdir)
		out.Start = append(out.Start, s)
	}
	return out, false, nil
}

// warmUpInherited runs the warm-up of what runs underneath, as its user: it also puts away what Ready looks for.
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
