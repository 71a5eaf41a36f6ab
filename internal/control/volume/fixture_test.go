package volume_test

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/control/volume"
	"github.com/pandastack/pandastack/internal/control/volume/helper"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

var (
	alice = auth.Principal{Workspace: "alice", KeyPrefix: "pds_a11ce000", Admin: true}
	bob   = auth.Principal{Workspace: "bob", KeyPrefix: "pds_b0b00000"}
)

// fixture is a control plane over a simulated host.
type fixture struct {
	*volume.Service
	t       *testing.T
	host    *hosttest.Host
	path    string
	fault   func(op string, committed bool) error
	quotas  map[quota.Kind]int64
	cfg     volume.Config
	db      *store.DB
	boxes   *sandbox.Service
	helpers *helper.Helpers
	jobs    *job.Queue
}

func newFixture(t *testing.T, change ...func(*fixture)) *fixture {
	t.Helper()
	w := &fixture{t: t, host: hosttest.New(), path: storetest.Empty(t),
		cfg: volume.Config{OrphanGrace: 1}}
	w.host.AddTemplate(hostapi.Template{Name: "mini", VCPUs: 1, MemoryMiB: 256, DiskMiB: 1024, Baked: true,
		Hidden: true})
	hosttest.ShareObjects(w.host)
	for _, f := range change {
		f(w)
	}
	w.start()
	t.Cleanup(func() {
		w.host.Close()
		w.must(w.db.Close())
	})
	return w
}

// start opens the store and makes the services, as a program that starts does.
func (w *fixture) start() {
	w.t.Helper()
	db, err := store.Open(context.WithoutCancel(w.t.Context()), store.Config{DSN: w.path,
		Fault: func(op string, committed bool) error {
			if w.fault != nil {
				return w.fault(op, committed)
			}
			return nil
		}})
	w.must(err)
	log := slog.New(slog.DiscardHandler)
	limits := quota.New(quota.Config{Defaults: w.quotas}, db)
	templates, err := template.New(w.host, db, template.BuiltinAliases(), limits)
	w.must(err)
	w.helpers, err = helper.New(helper.Config{Template: "mini", Idle: time.Hour, PerWorkspace: 2}, db, w.host, log)
	w.must(err)
	cfg := sandbox.Defaults()
	cfg.OrphanGrace = 0
	w.boxes, err = sandbox.New(cfg, sandbox.Deps{Store: db, Host: w.host, Templates: templates, Quotas: limits,
		Volumes: w.helpers, Log: log})
	w.must(err)
	w.jobs, err = job.New(job.Config{Exclusive: true, Poll: time.Hour}, db, log)
	w.must(err)
	w.db = db
	w.Service, err = volume.New(w.cfg, volume.Deps{Store: db, Host: w.host, Sandboxes: w.boxes, Helpers: w.helpers,
		Jobs: w.jobs, Quotas: limits, Log: log})
	w.must(err)
}

// restart is a program that was killed and started again.
func (w *fixture) restart() {
	w.t.Helper()
	w.must(w.db.Close())
	w.start()
}

// reconcile compares everything with the host.
func (w *fixture) reconcile() {
	w.t.Helper()
	w.must(w.helpers.Reconcile(w.t.Context()))
	w.must(w.boxes.Reconcile(w.t.Context()))
	w.must(w.Reconcile(w.t.Context()))
}

func (w *fixture) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// wants checks the code of an error, and returns the error.
func (w *fixture) wants(what string, err error, code api.Code) *api.Error {
	w.t.Helper()
	if api.CodeOf(err) != code {
		w.t.Errorf("%s: got %v (%s), want %s", what, err, api.CodeOf(err), code)
	}
	if err == nil {
		return &api.Error{}
	}
	return api.AsError(err)
}

// volume makes a volume of alice.
func (w *fixture) volume(name string) api.Volume {
	w.t.Helper()
	v, err := w.Create(w.t.Context(), alice, api.CreateVolumeRequest{Name: name})
	w.must(err)
	return v
}

func (w *fixture) get(name string) api.Volume {
	w.t.Helper()
	v, err := w.Get(w.t.Context(), alice, name)
	w.must(err)
	return v
}

// box makes a sandbox of alice with volumes, each as name or name:ro.
func (w *fixture) newBox(volumes ...string) api.SandboxID {
	w.t.Helper()
	b, err := w.boxes.Create(w.t.Context(), alice, api.CreateRequest{Template: "base", Volumes: mounts(volumes...)})
	w.must(err)
	return b.ID
}

func mounts(volumes ...string) []api.VolumeMount {
	var all []api.VolumeMount
	for _, v := range volumes {
		name, ro := strings.CutSuffix(v, ":ro")
		all = append(all, api.VolumeMount{Name: name, ReadOnly: ro})
	}
	return all
}

func (w *fixture) end(id api.SandboxID) {
	w.t.Helper()
	w.must(w.boxes.Delete(w.t.Context(), alice, id))
}

func (w *fixture) put(id api.SandboxID, path, text string) {
	w.t.Helper()
	g, err := w.boxes.Guest(w.t.Context(), alice, id)
	w.must(err)
	_, err = g.Write(w.t.Context(), path, guestapi.WriteOptions{Size: -1}, strings.NewReader(text))
	w.must(err)
}

// has checks a file of a sandbox; "": it is missing.
func (w *fixture) has(id api.SandboxID, path, want string) {
	w.t.Helper()
	g, err := w.boxes.Guest(w.t.Context(), alice, id)
	w.must(err)
	if got := w.read(g, path); got != want {
		w.t.Errorf("sandbox %s: %s holds %q, want %q", id, path, got, want)
	}
}

func (w *fixture) read(g guestapi.Guest, path string) string {
	w.t.Helper()
	_, r, err := g.Read(w.t.Context(), path, "", 0, -1)
	if err != nil {
		return ""
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	w.must(err)
	return string(data)
}

// putFile writes a file of a volume without a sandbox.
func (w *fixture) putFile(name, path, text string) {
	w.t.Helper()
	g, release, err := w.Files(w.t.Context(), alice, name, true)
	w.must(err)
	defer release()
	_, err = g.Write(w.t.Context(), path, guestapi.WriteOptions{Size: -1}, strings.NewReader(text))
	w.must(err)
}

// hasFile checks a file of a volume without a sandbox.
func (w *fixture) hasFile(name, path, want string) {
	w.t.Helper()
	g, release, err := w.Files(w.t.Context(), alice, name, false)
	w.must(err)
	defer release()
	if got := w.read(g, path); got != want {
		w.t.Errorf("volume %s: %s holds %q, want %q", name, path, got, want)
	}
}

// clean checks that store and host agree: every volume and snapshot of the host has its row and the reverse, and the
// writer of every volume holds its lease.
func (w *fixture) clean(when string) {
	w.t.Helper()
	ctx := w.t.Context()
	onHost, err := w.host.Volumes(ctx)
	w.must(err)
	rows, err := w.db.Read().Volumes(ctx, store.VolumeQuery{})
	w.must(err)
	snaps, err := w.db.Read().VolumeSnapshots(ctx, "")
	w.must(err)
	want := map[hostapi.VolumeID]string{} // the machine that writes, by disk
	for _, v := range rows {
		holder := hostapi.ParseOwner(v.Holder)
		if v.State != store.VolumeReady || v.Instance != "" && holder.Kind != lease.Files || v.NextDisk != "" {
			w.t.Errorf("%s: volume %+v is unfinished", when, v)
		}
		want[hostapi.VolumeID(v.Disk)] = holder.ID
	}
	for _, snap := range snaps {
		if snap.State != store.VolumeReady {
			w.t.Errorf("%s: snapshot %+v is unfinished", when, snap)
		}
		want[hostapi.VolumeID(snap.ID)] = ""
	}
	for _, h := range onHost {
		machine, ok := want[h.ID]
		if !ok {
			w.t.Errorf("%s: volume %s of the host has no row", when, h.ID)
		} else if machine != string(h.Machine) {
			w.t.Errorf("%s: volume %s is held by %q and written by %q", when, h.ID, machine, h.Machine)
		}
		delete(want, h.ID)
	}
	for id := range want {
		w.t.Errorf("%s: volume %s has a row and is not on the host", when, id)
	}
	for _, m := range w.host.Machines() {
		_, err := w.db.Read().Sandbox(ctx, string(m.ID))
		if hostapi.OwnerOf(m.Labels).Kind == hostapi.OwnerSandbox && err != nil {
			w.t.Errorf("%s: machine %s: %v", when, m.ID, err)
		}
	}
}
