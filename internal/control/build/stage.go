package build

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Sizes if neither the request nor the source has one.
const (
	defaultDiskMiB   = 4096
	defaultMemoryMiB = 512
	defaultVCPUs     = 1
)

// buildMachine is a machine in which a build runs steps.
type buildMachine struct {
	a     *buildRun
	id    hostapi.MachineID
	guest guestapi.Guest
}

// prepareSource builds the source of the template, and returns the request to publish it and the name of its base.
func (a *buildRun) prepareSource(ctx context.Context) (hostapi.Publish, string, error) {
	switch {
	case a.spec.FromSandbox != "" || a.spec.FromSnapshot != "":
		return a.fromSnapshot(ctx)
	case a.spec.FromTemplate != "" && !a.spec.OnBase:
		return a.fromTemplate(ctx)
	case a.spec.Rootfs:
		return a.fromRootfs(ctx)
	}
	if err := a.plan(ctx); err != nil {
		return hostapi.Publish{}, "", err
	}
	if err := a.onStep("plan"); err != nil {
		return hostapi.Publish{}, "", err
	}
	last := len(a.stages) - 1
	made, err := a.buildStage(ctx, last)
	if err != nil {
		return hostapi.Publish{}, "", err
	}
	req, err := a.publishRequest(ctx, made)
	return req, a.baseName(last), err
}

// baseName returns the name of the base of a stage, for people.
func (a *buildRun) baseName(n int) string {
	from := a.stages[n].from
	switch {
	case from.stage >= 0:
		return a.baseName(from.stage)
	case from.template != nil:
		return from.template.Name
	case from.image != nil:
		return from.image.Digest
	}
	return "scratch"
}

// buildStage builds a stage from the last layer that exists.
func (a *buildRun) buildStage(ctx context.Context, n int) (origin, error) {
	st := &a.stages[n]
	if st.made != nil {
		return *st.made, nil
	}
	depth, layer, err := a.findCached(ctx, st)
	if err != nil {
		return origin{}, err
	}
	for i := range depth {
		if err := a.setStep(ctx, a.stepTitle(n, i), true); err != nil {
			return origin{}, err
		}
		a.log.append(levelInfo, a.stepTitle(n, i), "cached")
	}
	from := origin{snapshot: layer}
	if layer == "" {
		if from, err = a.stageOrigin(ctx, st); err != nil {
			return origin{}, err
		}
	}
	if max(depth, 0) < len(st.steps) {
		if from, err = a.runSteps(ctx, n, max(depth, 0), from); err != nil {
			return origin{}, err
		}
	}
	st.made = &from
	return from, nil
}

// stageOrigin returns the origin of a stage without layers. It builds the stage below, if there is one.
func (a *buildRun) stageOrigin(ctx context.Context, st *stage) (origin, error) {
	if st.from.stage >= 0 {
		return a.buildStage(ctx, st.from.stage)
	}
	return origin{template: st.from.template, image: st.from.image, scratch: st.from.scratch}, nil
}

// stepTitle returns the name of a step, with its number among the steps of all stages.
func (a *buildRun) stepTitle(n, i int) string {
	before := 0
	for k := range n {
		before += len(a.stages[k].steps)
	}
	text := a.stages[n].steps[i].Text
	if len(text) > 200 {
		text = text[:200] + "..."
	}
	return stepName(before+i+1, a.row.Steps, strings.ToValidUTF8(text, "?"))
}

// runSteps runs the steps of a stage, beginning with step first, in a machine made from an origin. It returns the last
// layer.
func (a *buildRun) runSteps(ctx context.Context, n, first int, from origin) (origin, error) {
	st := &a.stages[n]
	b, err := a.createMachine(ctx, from)
	if err != nil {
		return origin{}, err
	}
	if from.image != nil || from.scratch { // a layer saves later builds the import and the boot
		if _, err := a.saveLayer(ctx, b, st.keys[0]); err != nil {
			return origin{}, err
		}
	}
	layer := ""
	for i := first; i < len(st.steps); i++ {
		title := a.stepTitle(n, i)
		if err := a.setStep(ctx, title, false); err != nil {
			return origin{}, err
		}
		a.log.append(levelInfo, title, "started")
		began := time.Now()
		if err := a.runStep(ctx, b, st.steps[i], st.files[i], title); err != nil {
			return origin{}, err
		}
		ran := time.Since(began)
		if err := a.onStep("step"); err != nil {
			return origin{}, err
		}
		if layer, err = a.saveLayer(ctx, b, st.keys[i+1]); err != nil {
			return origin{}, err
		}
		a.log.append(
			levelInfo,
			title,
			fmt.Sprintf("done in %.1f s, saved as a layer in %.1f s", ran.Seconds(), (time.Since(began)-ran).Seconds()),
		)
	}
	return origin{snapshot: layer}, b.destroy(ctx)
}

// createMachine makes a machine from an origin.
func (a *buildRun) createMachine(ctx context.Context, from origin) (*buildMachine, error) {
	a.machines++
	req := hostapi.Create{
		ID:       hostapi.MachineID(fmt.Sprintf("%sm%d", a.row.ID, a.machines)),
		Hostname: "build",
		Labels:   a.labels(),
		Group:    a.row.Workspace,
		DiskMiB:  a.spec.SizeMB,
	}
	switch {
	case from.snapshot != "":
		req.Snapshot = hostapi.SnapshotID(from.snapshot)
		disk, err := a.s.diskOf(ctx, req.Snapshot)
		if err != nil {
			return nil, err
		}
		req.DiskMiB = max(req.DiskMiB, disk)
	case from.template != nil:
		req.Template, req.DiskMiB = hostapi.TemplateName(from.template.Host), max(req.DiskMiB, from.template.DiskMB)
	default:
		image, err := a.importImage(ctx, from)
		if err != nil {
			return nil, err
		}
		req.Image, req.VCPUs, req.MemoryMiB, req.DiskMiB = image, a.s.cfg.VCPUs, a.s.cfg.MemoryMiB, 0
	}
	if _, err := a.s.host.Create(ctx, req); err != nil {
		return nil, err
	}
	if err := a.onStep("machine"); err != nil {
		return nil, err
	}
	guest, err := a.s.guests.Guest(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	return &buildMachine{a: a, id: req.ID, guest: guest}, nil
}

// diskOf returns the size of a snapshot's disk in MiB.
func (s *Service) diskOf(ctx context.Context, id hostapi.SnapshotID) (int, error) {
	list, err := s.host.Snapshots(ctx)
	if err != nil {
		return 0, err
	}
	for _, snap := range list {
		if snap.ID == id {
			return snap.DiskMiB, nil
		}
	}
	return 0, fmt.Errorf("snapshot %s: %w", id, hostapi.ErrNotFound)
}

// destroy destroys the machine.
func (b *buildMachine) destroy(ctx context.Context) error {
	if err := b.a.s.host.Destroy(ctx, b.id, "its steps have run"); err != nil {
		return err
	}
	return b.a.onStep("destroy")
}

// importImage imports an image, or an empty root file system, into the host. A build has one image at a time.
func (a *buildRun) importImage(ctx context.Context, from origin) (hostapi.ImageID, error) {
	id := imageID(a.row.ID)
	if err := a.s.deleteImage(ctx, id); err != nil {
		return "", err
	}
	if from.image == nil {
		return id, a.importFrom(ctx, id, emptyRoot)
	}
	layers := a.s.newSpace(ctx, a.principal.Workspace, imageSpace(a.row.ID))
	err := a.importFrom(ctx, id, func(ctx context.Context, w io.Writer) error {
		return from.image.Flatten(ctx, w, layers.take)
	})
	return id, errors.Join(err, layers.release())
}

// importFrom imports the tar stream that write produces.
func (a *buildRun) importFrom(
	ctx context.Context,
	id hostapi.ImageID,
	write func(context.Context, io.Writer) error,
) error {
	r, w := io.Pipe()
	written := make(chan error, 1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		err := write(ctx, w)
		w.CloseWithError(err)
		written <- err
	}()
	began := time.Now()
	image, err := a.s.host.ImportImage(ctx, hostapi.Import{ID: id, SizeMiB: cmp.Or(a.spec.SizeMB, defaultDiskMiB)}, r)
	if err == nil {
		err = drain(r)
	}
	r.CloseWithError(errors.New("the host stopped reading"))
	cancel(err)
	if werr := <-written; werr != nil && (err == nil || errors.Is(err, werr)) {
		return werr // the error of the stream says more than the error that the host got from it
	}
	if err != nil {
		return err
	}
	a.log.append(
		levelInfo,
		a.row.Step,
		fmt.Sprintf("imported %d files, %s, in %.1f s", image.Files, size(image.Bytes), time.Since(began).Seconds()),
	)
	return a.onStep("import")
}

// maxTrailing bounds the bytes behind the end of an archive. Programs pad archives to a whole block, but the rest of a
// compressed stream can be endless.
const maxTrailing = 16 << 20

// drain reads the bytes behind the end of an archive.
func drain(r io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(r, maxTrailing+1))
	if n > maxTrailing {
		return api.Errorf(api.Invalid, "more than %d MiB follow the end of the archive", maxTrailing>>20)
	}
	return err
}

// emptyRoot writes the root file system of FROM scratch: the directories that a guest uses as mount points.
func emptyRoot(_ context.Context, w io.Writer) error {
	out := tar.NewWriter(w)
	for _, dir := range []string{"dev", "etc", "proc", "root", "run", "sys", "tmp"} {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return err
		}
	}
	return out.Close()
}

// publishRequest returns the request that makes an origin the template.
func (a *buildRun) publishRequest(ctx context.Context, made origin) (hostapi.Publish, error) {
	st := &a.stages[len(a.stages)-1]
	user, _, _ := strings.Cut(st.config.User, ":")
	req := hostapi.Publish{VCPUs: a.spec.CPU, MemoryMiB: a.spec.MemoryMB, DiskMiB: a.spec.SizeMB, Env: st.config.Env,
		User: cmp.Or(a.spec.User, user), Workdir: cmp.Or(a.spec.Workdir, st.config.Workdir), Warm: a.spec.Warm,
		Start: a.spec.Start, Ready: a.spec.Ready}
	if t := a.rootTemplate(len(a.stages) - 1); t != nil {
		req.User, req.Workdir = cmp.Or(req.User, t.User), cmp.Or(req.Workdir, t.Workdir)
		req.VCPUs, req.MemoryMiB, req.DiskMiB = cmp.Or(
			req.VCPUs,
			t.CPU,
		), cmp.Or(
			req.MemoryMiB,
			t.MemoryMB,
		), max(
			req.DiskMiB,
			t.DiskMB,
		)
		a.limits = t.Limits
	}
	req.User, req.Workdir = cmp.Or(req.User, "root"), cmp.Or(req.Workdir, "/")
	req.VCPUs, req.MemoryMiB = cmp.Or(req.VCPUs, defaultVCPUs), cmp.Or(req.MemoryMiB, defaultMemoryMiB)
	a.setCommands(st, &req)
	switch {
	case made.snapshot != "":
		req.Snapshot = hostapi.SnapshotID(made.snapshot)
	case made.template != nil:
		req.Template = hostapi.TemplateName(made.template.Host)
	default:
		image, err := a.importImage(ctx, made)
		if err != nil {
			return req, err
		}
		req.Image = image
	}
	return req, nil
}

// setCommands sets start and ready commands from the stage if the request has none.
func (a *buildRun) setCommands(st *stage, req *hostapi.Publish) {
	entry, command := st.config.Entrypoint, st.config.Cmd
	if len(entry) == 0 && len(command) > 0 {
		entry = st.from.entry
	}
	if argv := append(append([]string(nil), entry...), command...); req.Start == "" && len(argv) > 0 {
		req.Start = quoteAll(argv)
	}
	health := st.config.Health
	if req.Ready != "" || health == nil || health.None || req.Start == "" {
		return
	}
	req.Ready = quoteAll(health.Argv)
	if health.StartPeriod > 0 {
		req.ReadyLimit = health.StartPeriod + 3*time.Minute
	}
}

// quoteAll returns argv as a command line for a shell.
func quoteAll(argv []string) string {
	out := make([]string, 0, len(argv))
	for _, arg := range argv {
		if arg != "" &&
			strings.Trim(arg, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:=,@%") == "" {
			out = append(out, arg)
			continue
		}
		out = append(out, "'"+strings.ReplaceAll(arg, "'", `'\''`)+"'")
	}
	return strings.Join(out, " ")
}

// rootTemplate returns the template that a stage is based on, directly or through other stages, or nil.
func (a *buildRun) rootTemplate(n int) *api.Template {
	for a.stages[n].from.stage >= 0 {
		n = a.stages[n].from.stage
	}
	return a.stages[n].from.template
}

// fromRootfs imports an uploaded root file system to be published.
func (a *buildRun) fromRootfs(ctx context.Context) (hostapi.Publish, string, error) {
	id := imageID(a.row.ID)
	err := a.importFrom(ctx, id, func(ctx context.Context, w io.Writer) error {
		f, err := os.Open(a.s.inputPath(a.row.ID))
		if err != nil {
			return err
		}
		plain, err := gunzip(f)
		if err == nil {
			_, err = io.Copy(w, plain)
		}
		return errors.Join(err, f.Close())
	})
	return hostapi.Publish{
		Image: id, VCPUs: cmp.Or(a.spec.CPU, defaultVCPUs), MemoryMiB: cmp.Or(a.spec.MemoryMB, defaultMemoryMiB),
		DiskMiB: a.spec.SizeMB,
		User: cmp.Or(
			a.spec.User,
			"root",
		), Workdir: cmp.Or(a.spec.Workdir, "/"), Start: a.spec.Start, Ready: a.spec.Ready, Warm: a.spec.Warm,
	}, "root file system", err
}

// fromSnapshot prepares a snapshot, or a new snapshot of a sandbox, to be published.
func (a *buildRun) fromSnapshot(ctx context.Context) (_ hostapi.Publish, _ string, err error) {
	id := a.spec.FromSnapshot
	if a.spec.FromSandbox != "" {
		taken, err := a.s.sandboxes.TakeSnapshot(ctx, a.principal, a.spec.FromSandbox, api.SnapshotRequest{})
		if err != nil {
			return hostapi.Publish{}, "", err
		}
		id = taken.ID
		defer func() {
			err = errors.Join(err, a.s.sandboxes.DeleteSnapshot(context.WithoutCancel(ctx), a.principal, taken.ID))
		}()
	}
	row, err := a.s.db.Read().Snapshot(ctx, string(id))
	if err != nil || row.Workspace != a.row.Workspace {
		return hostapi.Publish{}, "", api.Errorf(api.NotFound, "snapshot %s not found", id)
	}
	req := hostapi.Publish{
		KeepMemory: a.spec.Memory,
		VCPUs:      cmp.Or(a.spec.CPU, row.VCPUs),
		MemoryMiB:  cmp.Or(a.spec.MemoryMB, row.MemoryMiB),
		DiskMiB: max(
			a.spec.SizeMB,
			row.DiskMiB,
		),
		User:     cmp.Or(a.spec.User, row.User, "root"),
		Workdir:  cmp.Or(a.spec.Workdir, row.Workdir, "/"),
		Env:      row.Env,
		Start:    a.spec.Start,
		Ready:    a.spec.Ready,
		Warm:     a.spec.Warm,
		Snapshot: tempSnapshotID(a.row.ID),
	}
	if row.Limits != "" {
		if err := json.Unmarshal([]byte(row.Limits), &a.limits); err != nil {
			return req, "", fmt.Errorf("limits of snapshot %s: %w", id, err)
		}
	}
	b, err := a.createMachine(ctx, origin{snapshot: string(id)})
	if err != nil {
		return req, "", err
	}
	// The disk of a snapshot lacks the dirty pages in its memory. This snapshot is taken after a sync.
	if err := b.snapshot(ctx, req.Snapshot); err != nil {
		return req, "", err
	}
	return req, row.Template, b.destroy(ctx)
}

// fromTemplate prepares a template to be published with another size.
func (a *buildRun) fromTemplate(ctx context.Context) (hostapi.Publish, string, error) {
	t, err := a.s.templates.Resolve(ctx, a.principal, a.spec.FromTemplate)
	if err != nil {
		return hostapi.Publish{}, "", err
	}
	a.limits = t.Limits
	return hostapi.Publish{
		Template: hostapi.TemplateName(
			t.Host,
		), VCPUs: cmp.Or(a.spec.CPU, t.CPU), MemoryMiB: cmp.Or(a.spec.MemoryMB, t.MemoryMB),
		DiskMiB: max(
			a.spec.SizeMB,
			t.DiskMB,
		), User: cmp.Or(a.spec.User, t.User), Workdir: cmp.Or(a.spec.Workdir, t.Workdir), Env: t.Env,
		Start: cmp.Or(a.spec.Start, t.Start), Ready: cmp.Or(a.spec.Ready, t.Ready), Warm: a.spec.Warm,
	}, t.Base, nil
}
