// Package bench measures a node from outside, over HTTP, as its users experience it.
//
// The package defines the series, what each one measures, and the report. It uses only the public client, and deletes
// everything it creates. Each run also measures two references: a cold boot of the same template, and a runc
// container. It asserts nothing: the report says which targets were missed.
//
// Run one benchmark at a time per node; concurrent ones distort each other's numbers.
package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

// Options of a run.
type Options struct {
	Template string             // template of most series
	Sizes    []string           // baked templates of the fork and hibernate series; empty for Template only
	Only     []string           // groups to measure; empty for all
	Scale    float64            // factor on the number of measurements; 1 is a full run
	MaxIdle  int                // largest number of sandboxes in the idle series
	Registry string             // address of this host that the node accesses over plain HTTP; empty skips oci_import
	Work     string             // an empty directory for temporary files
	Report   func(group string) // called before each group
	// HostSeries measures the groups that need access to the host of the node. Groups without an entry are skipped.
	HostSeries map[string]HostSeries
}

// run is one benchmark run.
type run struct {
	Options
	cl     *client.Client
	report *Report

	mu   sync.Mutex
	made map[api.SandboxID]bool // guarded by mu; sandboxes that must be deleted
}

// part is a group of series that are measured together.
type part struct {
	name string
	do   func(*run, context.Context) error
}

var parts = []part{
	{"create", (*run).create},
	{"exec", (*run).exec},
	{"exec_clients", (*run).clients},
	{"transfer", (*run).transfer},
	{"fork", (*run).forks},
	{"fork_tree_16", (*run).forkTree},
	{"hibernate", (*run).hibernate},
	{"volume", (*run).volumes},
	{"rebuild", (*run).rebuild},
	{"oci_import", (*run).importImage},
	{"first_cell", (*run).firstCell},
	{"first_screenshot", (*run).firstScreenshot},
	{"database", (*run).database},
	{"function", (*run).functions},
	{"idle", (*run).idle},
	{"cold_boot", (*run).coldBoot},
	{"runc", (*run).runc},
	hostPart("jail_cost"), hostPart("pager"), hostPart("push"), hostPart("stream"), hostPart("cross_host"),
}

// Groups returns the names of all groups of series, in the order in which they are measured.
func Groups() []string {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	return names
}

// CheckGroups returns an error that lists the groups if a name is not one of them.
func CheckGroups(names []string) error {
	for _, name := range names {
		if !slices.Contains(Groups(), name) {
			return fmt.Errorf("unknown group of series %q; the groups are %s", name, strings.Join(Groups(), ", "))
		}
	}
	return nil
}

// ownTemplates are the templates of groups that use another one than Options.Template.
var ownTemplates = map[string]string{
	"first_cell": cellTemplate, "first_screenshot": shotTemplate, "database": databaseTemplate,
}

// needsNothing are the groups that need no template.
var needsNothing = []string{"oci_import", "runc", "pager"}

// Templates returns the templates that must be baked before a run, the largest last.
func (o Options) Templates() []string {
	groups := o.Only
	if len(groups) == 0 {
		groups = Groups()
	}
	var main, sized, own []string
	for _, p := range parts { // in their order, whatever the order of o.Only
		name, hasOwn := ownTemplates[p.name]
		switch {
		case !slices.Contains(groups, p.name) || slices.Contains(needsNothing, p.name):
		case hasOwn:
			own = append(own, name)
		default:
			main = []string{o.Template}
		}
		if slices.Contains(groups, p.name) && (p.name == "fork" || p.name == "hibernate") {
			sized = o.Sizes
		}
	}
	return slices.Concat(main, sized, own)
}

// Optional reports whether a run without a template still measures all groups but the template's own.
func (o Options) Optional(template string) bool {
	if template == o.Template || slices.Contains(o.Sizes, template) {
		return false
	}
	return slices.Contains(slices.Collect(maps.Values(ownTemplates)), template)
}

// cleanup is the time limit for deleting all sandboxes at the end.
const cleanup = 2 * time.Minute

// Run measures all series, one after the other. If a group fails, the report lists it in Skipped with the reason, and
// the run continues with the next group. If the run itself fails, Run returns an error together with a report of what
// was measured so far.
func Run(ctx context.Context, cl *client.Client, opt Options) (report *Report, err error) {
	if err := CheckGroups(opt.Only); err != nil {
		return nil, err
	}
	r := &run{Options: opt, cl: cl, made: map[api.SandboxID]bool{}}
	r.report = &Report{Began: time.Now().UTC(), Machine: thisMachine(), Skipped: map[string]string{}}
	capacity, err := cl.Capacity(ctx)
	if err != nil {
		return nil, err
	}
	r.report.Node = map[string]string{
		"driver":         capacity.Driver,
		"driver_version": capacity.DriverVersion,
		"accelerator":    capacity.Accelerator,
		"isolation":      capacity.Isolation,
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		err = errors.Join(err, r.deleteAll(end))
		r.report.Took = time.Since(r.report.Began).Seconds()
		r.report.Ratio = r.ratio()
	}()
	for _, p := range parts {
		if len(opt.Only) > 0 && !slices.Contains(opt.Only, p.name) {
			continue
		}
		opt.Report(p.name)
		err := p.do(r, ctx)
		if ctx.Err() != nil {
			return r.report, context.Cause(ctx)
		}
		if err != nil {
			r.report.Skipped[p.name] = err.Error()
		}
		if err := r.deleteAll(ctx); err != nil {
			return r.report, err
		}
	}
	return r.report, nil
}

// leastRatio is the target for the time of a cold boot to first exec over that of a create to first exec.
const leastRatio = 8

// ratio returns the p50 of a cold boot over that of a create, both to the first exec. It is 0 if one of them was not
// measured.
func (r *run) ratio() float64 {
	var cold, create float64
	for _, s := range r.report.Series {
		switch s.Name {
		case "cold_boot":
			cold = s.P50
		case "create_sequential":
			create = s.P50
		}
	}
	if create == 0 {
		return 0
	}
	return cold / create
}

// times returns n scaled by Scale, and at least 1.
func (r *run) times(n int) int { return max(1, int(float64(n)*r.Scale)) }

// series adds a series in milliseconds to the report.
func (r *run) series(name, what string, target *Target) *Series {
	s := &Series{Name: name, What: what, Unit: "ms", Target: target}
	r.report.Series = append(r.report.Series, s)
	return s
}

// add records one measurement in milliseconds, or its failure.
func (r *run) add(s *Series, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		s.Failed++
		s.Note = err.Error()
	} else {
		s.Values = append(s.Values, float64(took.Microseconds())/1000)
	}
	s.close()
}

// make creates a sandbox that deleteAll will delete.
func (r *run) make(ctx context.Context, req api.CreateRequest) (api.Sandbox, error) {
	if req.Template == "" {
		req.Template = r.Template
	}
	sb, err := r.cl.Sandboxes.Create(ctx, req)
	if err == nil {
		r.remember(sb.ID)
	}
	return sb, err
}

// remember registers sandboxes for deleteAll.
func (r *run) remember(ids ...api.SandboxID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.made[id] = true
	}
}

// remove deletes a sandbox.
func (r *run) remove(ctx context.Context, id api.SandboxID) error {
	err := r.cl.Sandboxes.Delete(ctx, id)
	if err == nil {
		r.mu.Lock()
		delete(r.made, id)
		r.mu.Unlock()
	}
	return err
}

// deleteAll deletes all sandboxes of the run that still exist.
func (r *run) deleteAll(ctx context.Context) error {
	r.mu.Lock()
	ids := slices.Collect(maps.Keys(r.made))
	r.mu.Unlock()
	var all error
	for _, id := range ids {
		all = errors.Join(all, r.remove(ctx, id))
	}
	return all
}

// sh runs a shell command that must exit with code 0, and returns its standard output.
func (r *run) sh(ctx context.Context, id api.SandboxID, line string) (string, error) {
	res, err := r.cl.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: line, TimeoutSeconds: 60})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("%q exited with code %d: %s", line, res.ExitCode, res.Stderr)
	}
	return res.Stdout, err
}

// wait sleeps for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
