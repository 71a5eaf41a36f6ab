package node

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/image/imagebuild"
	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/ingress/repl"
	"github.com/pandastack/pandastack/internal/lib/command"
)

// loadRecipes returns the built-in recipes with the parameters of the configuration.
func (n *node) loadRecipes() (map[string]recipe.Recipe, error) {
	params, err := n.Config.Templates.Values()
	if err != nil {
		return nil, err
	}
	return recipe.Builtin(recipe.Options{Params: params})
}

// recipes returns the templates that this node can bake.
func (n *node) recipes() ([]bake.Recipe, error) {
	builtin, err := n.loadRecipes()
	if err != nil {
		return nil, err
	}
	var all []bake.Recipe
	for _, name := range slices.Sorted(maps.Keys(builtin)) {
		r := builtin[name]
		start, err := startPrograms(r)
		if err != nil {
			return nil, fmt.Errorf("template %s: %w", name, err)
		}
		check := ""
		if _, ok := r.Files[recipe.CheckFile]; ok {
			check = recipe.CheckPath
		}
		all = append(all, bake.Recipe{
			Name:        hostapi.TemplateName(r.Name),
			Hidden:      r.Hidden,
			Description: r.Description,
			Base:        r.Distribution.Suite,
			VCPUs:       r.VCPUs,
			MemoryMiB:   r.MemoryMiB,
			DiskMiB:     r.DiskMiB,
			User:        r.User,
			Workdir:     r.Workdir,
			Tools:       r.Tools,
			Limits:      hostapi.Limits(r.Limits),
			Disks:       dataDisks(r),
			Start:       start,
			Ready:       r.Ready,
			Check:       check,
			Warm:        r.Warm,
			Scrub:       true,
			Digest:      r.Digest(),
			Build: func(ctx context.Context, work, image string, log, step func(string)) error {
				data := map[string]string{}
				for _, d := range r.Disks {
					data[d.Name] = bake.DataImage(image, d.Name)
				}
				return imagebuild.Build(
					ctx,
					imagebuild.Options{
						Recipe: r,
						Work:   work,
						Cache:  n.path("cache"),
						Image:  image,
						Data:   data,
						Log:    command.Log(log),
						Step:   step,
					},
				)
			},
		})
	}
	return all, nil
}

// dataDisks returns the data disks of a recipe.
func dataDisks(r recipe.Recipe) []snapshot.DataDisk {
	var all []snapshot.DataDisk
	for _, d := range r.Disks {
		all = append(all, snapshot.DataDisk{Name: d.Name, MiB: d.SizeMiB, Mount: d.Mount, Options: d.Options})
	}
	return all
}

// startPrograms returns the programs that keep running in a template, interpreters included.
func startPrograms(r recipe.Recipe) ([]bake.Start, error) {
	var all []bake.Start
	for _, s := range r.Start {
		spec := guestapi.ProcessSpec{Shell: "exec " + s.Command, Dir: s.Dir, User: s.User, Tag: s.Name}
		if s.Context != "" {
			lang, err := repl.ParseLanguage(s.Context)
			if err != nil {
				return nil, err
			}
			spec = repl.Spec(lang, s.Dir, s.User)
			if s.Fork {
				spec = repl.ForkServerSpec(s.Dir, s.User)
			}
		}
		spec.Env = s.Env
		all = append(all, bake.Start{Name: s.Name, Spec: spec})
	}
	return all, nil
}

// aliases returns the aliases of templates: the names that published clients use, those of the recipes, and those of
// the configuration. A later one wins.
func (n *node) aliases() (map[string]string, error) {
	all := template.BuiltinAliases()
	recipes, err := n.loadRecipes()
	if err != nil {
		return nil, err
	}
	for _, r := range recipes {
		for _, a := range r.Aliases {
			all[a] = r.Name
		}
	}
	own, err := n.Config.Templates.Names()
	maps.Copy(all, own)
	return all, err
}
