// Package volumetest is the conformance suite of hostapi.VolumeHost.
//
// Each test makes machines and volumes with ids of its own and removes them. A Lab is used by one test at a time.
package volumetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Lab is a host under test.
type Lab struct {
	Host     hostapi.Host
	Template hostapi.TemplateName // of the machines that the suite makes
	Disk     hostapi.DataDisk     // of the template
	// Guest returns the guest of a running machine. nil: the machines have no files of their own, and the suite
	// checks only what the host says.
	Guest func(ctx context.Context, id hostapi.MachineID) (guestapi.Guest, error)
	// Objects: the host has an object store.
	Objects bool
}

// Run runs the suite.
func Run(t *testing.T, newLab func(t *testing.T) Lab) {
	for _, tt := range []struct {
		name string
		run  func(*suite)
	}{
		{"Life", (*suite).life},
		{"Create", (*suite).create},
		{"OneWriter", (*suite).oneWriter},
		{"ReadOnly", (*suite).readOnly},
		{"Frozen", (*suite).frozen},
		{"Fork", (*suite).fork},
		{"Keep", (*suite).keep},
		{"Snapshot", (*suite).snapshot},
		{"Hibernate", (*suite).hibernate},
		{"Resize", (*suite).resize},
		{"Detach", (*suite).detach},
		{"Backup", (*suite).backup},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(&suite{T: t, Lab: newLab(t)}) })
	}
}

type suite struct {
	*testing.T
	Lab
	machines int
	volumes  int
}

const (
	sizeMiB = 64
	dir     = "/mnt/vol"
)

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) wants(what string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// volume makes a volume and removes it at the end of the test.
func (s *suite) volume(req hostapi.CreateVolume) hostapi.VolumeID {
	s.Helper()
	s.volumes++
	req.ID = hostapi.VolumeID(fmt.Sprintf("volsuite%d", s.volumes))
	if req.From == "" && req.Template == "" {
		req.SizeMiB = sizeMiB
	}
	v, err := s.Host.CreateVolume(s.Context(), req)
	s.must(err)
	s.Cleanup(func() { s.must(s.Host.DeleteVolume(context.WithoutCancel(s.Context()), v.ID)) })
	return v.ID
}

func (s *suite) machineID() hostapi.MachineID {
	s.machines++
	id := hostapi.MachineID(fmt.Sprintf("mchsuite%d", s.machines))
	s.Cleanup(func() { s.must(s.Host.Destroy(context.WithoutCancel(s.Context()), id, "test")) })
	return id
}

// machine makes a machine and removes it at the end of the test.
func (s *suite) machine(all ...hostapi.VolumeAttachment) hostapi.MachineID {
	s.Helper()
	id := s.machineID()
	_, err := s.Host.Create(s.Context(), hostapi.Create{ID: id, Template: s.Template, Volumes: all})
	s.must(err)
	return id
}

func writer(id hostapi.VolumeID, fence uint64) hostapi.VolumeAttachment {
	return hostapi.VolumeAttachment{Volume: id, Mount: dir, Fence: fence}
}

func (s *suite) put(id hostapi.MachineID, text string) {
	s.Helper()
	if s.Guest == nil {
		return
	}
	g, err := s.Guest(s.Context(), id)
	s.must(err)
	_, err = g.Write(s.Context(), dir+"/file", guestapi.WriteOptions{Size: -1, User: "root"}, strings.NewReader(text))
	s.must(err)
}

// has checks what a machine has in its volume; "": nothing.
func (s *suite) has(id hostapi.MachineID, want string) {
	s.Helper()
	if s.Guest == nil {
		return
	}
	g, err := s.Guest(s.Context(), id)
	s.must(err)
	_, r, err := g.Read(s.Context(), dir+"/file", "root", 0, -1)
	if errors.Is(err, guestapi.ErrNotFound) {
		if want != "" {
			s.Errorf("machine %s has no file, want %q", id, want)
		}
		return
	}
	s.must(err)
	defer r.Close()
	got, err := io.ReadAll(r)
	s.must(err)
	if string(got) != want {
		s.Errorf("machine %s has %q, want %q", id, got, want)
	}
}

// attached checks the only volume of a machine.
func (s *suite) attached(id hostapi.MachineID, want hostapi.AttachedVolume) {
	s.Helper()
	m, err := s.Host.Get(s.Context(), id)
	s.must(err)
	if !slices.Equal(m.Volumes, []hostapi.AttachedVolume{want}) {
		s.Errorf("machine %s has volumes %+v, want %+v", id, m.Volumes, want)
	}
}

// written checks which machine writes to a volume, and with which fence.
func (s *suite) written(id hostapi.VolumeID, by hostapi.MachineID, fence uint64) {
	s.Helper()
	v, err := s.Host.GetVolume(s.Context(), id)
	s.must(err)
	if v.Machine != by || v.Fence != fence {
		s.Errorf("volume %s is written by %q with fence %d, want %q with %d", id, v.Machine, v.Fence, by, fence)
	}
}

func (s *suite) life() {
	id := s.volume(hostapi.CreateVolume{Group: "group", Labels: map[string]string{"a": "b"}})
	v, err := s.Host.GetVolume(s.Context(), id)
	s.must(err)
	if v.SizeMiB != sizeMiB || v.Labels["a"] != "b" || v.Group != "group" || v.Machine != "" || v.Frozen ||
		v.Host == "" || v.Created.IsZero() {
		s.Errorf("got volume %+v", v)
	}
	all, err := s.Host.Volumes(s.Context())
	s.must(err)
	if !slices.ContainsFunc(all, func(v hostapi.Volume) bool { return v.ID == id }) {
		s.Errorf("volume %s is not in %+v", id, all)
	}
	a := s.machine(writer(id, 1))
	s.written(id, a, 1)
	s.attached(a, hostapi.AttachedVolume{Volume: id, Mount: dir, SizeMiB: sizeMiB})
	s.put(a, "one")
	s.wants("deleting a volume that is written", s.Host.DeleteVolume(s.Context(), id), hostapi.ErrInUse)
	_, err = s.Host.DetachVolume(s.Context(), a, id, false)
	s.must(err)
	s.written(id, "", 1)
	s.must(s.Host.Destroy(s.Context(), a, "test"))
	b := s.machine(writer(id, 2))
	s.has(b, "one")
	s.must(s.Host.Destroy(s.Context(), b, "test"))
	s.written(id, "", 2)
	s.must(s.Host.DeleteVolume(s.Context(), id))
	s.must(s.Host.DeleteVolume(s.Context(), id))
	_, err = s.Host.GetVolume(s.Context(), id)
	s.wants("a deleted volume", err, hostapi.ErrNotFound)
}

func (s *suite) create() {
	id := s.volume(hostapi.CreateVolume{})
	_, err := s.Host.CreateVolume(s.Context(), hostapi.CreateVolume{ID: id, SizeMiB: sizeMiB})
	s.wants("an id in use", err, hostapi.ErrExists)
	_, err = s.Host.CreateVolume(s.Context(), hostapi.CreateVolume{ID: "volsuitex", From: "volnone"})
	s.wants("a copy of nothing", err, hostapi.ErrNotFound)
	_, err = s.Host.CreateVolume(s.Context(), hostapi.CreateVolume{ID: "volsuitex", From: id, SizeMiB: sizeMiB - 1})
	s.wants("a copy that is smaller", err, hostapi.ErrInvalid)
	mch := s.machineID()
	_, err = s.Host.Create(s.Context(), hostapi.Create{ID: mch, Template: s.Template,
		Volumes: []hostapi.VolumeAttachment{writer(id, 1), {Volume: "volnone", Mount: "/mnt/other", Fence: 1}}})
	s.wants("a machine with an unknown volume", err, hostapi.ErrNotFound)
	if v, err := s.Host.GetVolume(s.Context(), id); err != nil || v.Machine != "" {
		s.Errorf("after a create that failed: volume %+v, %v", v, err)
	}
	_, err = s.Host.Get(s.Context(), mch)
	s.wants("the machine that could not be made", err, hostapi.ErrNotFound)
	other := s.volume(hostapi.CreateVolume{})
	_, err = s.Host.Create(s.Context(), hostapi.Create{ID: mch, Template: s.Template,
		Volumes: []hostapi.VolumeAttachment{writer(id, 2), writer(other, 2)}})
	s.wants("two volumes at one mount point", err, hostapi.ErrInvalid)
}

func (s *suite) oneWriter() {
	id := s.volume(hostapi.CreateVolume{})
	a, b := s.machine(writer(id, 5)), s.machine()
	_, err := s.Host.AttachVolume(s.Context(), b, writer(id, 6))
	s.wants("a second writer", err, hostapi.ErrInUse)
	s.must(s.Host.Pause(s.Context(), a))
	_, err = s.Host.AttachVolume(s.Context(), b, writer(id, 6))
	s.wants("a second writer while the first is paused", err, hostapi.ErrInUse)
	s.must(s.Host.Resume(s.Context(), a))
	_, err = s.Host.DetachVolume(s.Context(), a, id, false)
	s.must(err)
	_, err = s.Host.AttachVolume(s.Context(), b, writer(id, 4))
	s.wants("an old fence", err, hostapi.ErrInUse)
	_, err = s.Host.AttachVolume(s.Context(), b, writer(id, 6))
	s.must(err)
	s.written(id, b, 6)
}

func (s *suite) readOnly() {
	id := s.volume(hostapi.CreateVolume{})
	a := s.machine(writer(id, 1))
	s.put(a, "one")
	b := s.machine(hostapi.VolumeAttachment{Volume: id, Mount: dir, ReadOnly: true})
	s.attached(b, hostapi.AttachedVolume{Volume: id, Mount: dir, ReadOnly: true, Private: true, SizeMiB: sizeMiB})
	s.put(a, "two")
	s.has(b, "one")
	if s.Guest != nil {
		g, err := s.Guest(s.Context(), b)
		s.must(err)
		_, err = g.Write(s.Context(), dir+"/file", guestapi.WriteOptions{Size: -1, User: "root"},
			strings.NewReader("three"))
		if err == nil {
			s.Error("a file of a volume that is mounted read-only was written")
		}
	}
	s.written(id, a, 1)
}

func (s *suite) frozen() {
	id := s.volume(hostapi.CreateVolume{})
	a := s.machine(writer(id, 1))
	s.put(a, "one")
	still := s.volume(hostapi.CreateVolume{From: id, Frozen: true})
	s.put(a, "two")
	_, err := s.Host.AttachVolume(s.Context(), s.machine(), writer(still, 1))
	s.wants("a writer of a frozen volume", err, hostapi.ErrInvalid)
	s.has(s.machine(hostapi.VolumeAttachment{Volume: still, Mount: dir, ReadOnly: true}), "one")
	thawed := s.volume(hostapi.CreateVolume{From: still})
	b := s.machine(writer(thawed, 1))
	s.has(b, "one")
	_, err = s.Host.ResizeVolume(s.Context(), still, 2*sizeMiB)
	s.wants("growing a frozen volume", err, hostapi.ErrInvalid)
}

func (s *suite) fork() {
	id := s.volume(hostapi.CreateVolume{})
	a := s.machine(writer(id, 1))
	s.put(a, "one")
	c := s.machineID()
	results, err := s.Host.Fork(s.Context(), hostapi.Fork{Parent: a, Children: []hostapi.Child{{ID: c}}})
	s.must(err)
	s.must(results[0].Err())
	s.attached(c, hostapi.AttachedVolume{Volume: id, Mount: dir, Private: true, SizeMiB: sizeMiB})
	s.put(c, "child")
	s.put(a, "parent")
	s.has(c, "child")
	s.has(a, "parent")
	s.written(id, a, 1)
	promoted := s.volume(hostapi.CreateVolume{From: id, Machine: c})
	s.has(s.machine(writer(promoted, 1)), "child")
	s.must(s.Host.Destroy(s.Context(), c, "test"))
	s.has(a, "parent")
}

// keep makes the private copy of a fork's child a volume, which the child goes on writing to.
func (s *suite) keep() {
	ctx, disk := s.Context(), s.Disk
	id := s.volume(hostapi.CreateVolume{Template: s.Template, Disk: disk.Name})
	a := s.machineID()
	_, err := s.Host.Create(ctx, hostapi.Create{ID: a, Template: s.Template, Persistent: true,
		Volumes: []hostapi.VolumeAttachment{{Volume: id, Disk: disk.Name, Fence: 1}}})
	s.must(err)
	fork := func(persistent bool, of hostapi.MachineID) hostapi.MachineID {
		c := s.machineID()
		results, err := s.Host.Fork(ctx, hostapi.Fork{Parent: of,
			Children: []hostapi.Child{{ID: c, Persistent: persistent}}})
		s.must(err)
		s.must(results[0].Err())
		return c
	}
	refuses := func(what string, from hostapi.VolumeID, of hostapi.MachineID, want error) {
		s.Helper()
		_, err := s.Host.CreateVolume(ctx, hostapi.CreateVolume{ID: "volrefused", From: from, Machine: of, Fence: 1})
		s.wants(what, err, want)
		_, err = s.Host.GetVolume(ctx, "volrefused")
		s.wants(what+", the volume", err, hostapi.ErrNotFound)
	}
	refuses("keeping a volume that is no private copy", id, a, hostapi.ErrNotFound)
	refuses("keeping the copy of a machine that is not persistent", id, fork(false, a), hostapi.ErrInvalid)
	other := s.volume(hostapi.CreateVolume{})
	b := s.machineID()
	_, err = s.Host.Create(ctx, hostapi.Create{ID: b, Template: s.Template, Persistent: true,
		Volumes: []hostapi.VolumeAttachment{writer(other, 1)}})
	s.must(err)
	refuses("keeping a copy that is not in place of a data disk", other, fork(true, b), hostapi.ErrInvalid)

	c := fork(true, a)
	s.attached(c, hostapi.AttachedVolume{Volume: id, Mount: disk.Mount, Private: true, SizeMiB: disk.SizeMiB})
	kept := s.volume(hostapi.CreateVolume{From: id, Machine: c, Fence: 7})
	s.written(kept, c, 7)
	s.written(id, a, 1)
	s.attached(c, hostapi.AttachedVolume{Volume: kept, Mount: disk.Mount, SizeMiB: disk.SizeMiB})
	s.wants("deleting a volume that was kept", s.Host.DeleteVolume(ctx, kept), hostapi.ErrInUse)
	s.must(s.Host.Hibernate(ctx, c))
	_, err = s.Host.Wake(ctx, c)
	s.must(err)
	s.attached(c, hostapi.AttachedVolume{Volume: kept, Mount: disk.Mount, SizeMiB: disk.SizeMiB})
	s.must(s.Host.Destroy(ctx, c, "test"))
	s.written(kept, "", 7) // it outlives the machine
}

func (s *suite) snapshot() {
	id := s.volume(hostapi.CreateVolume{})
	a := s.machine(writer(id, 1))
	s.put(a, "one")
	_, err := s.Host.TakeSnapshot(s.Context(), a, "snpsuite", nil)
	s.must(err)
	s.Cleanup(func() { s.must(s.Host.DeleteSnapshot(context.WithoutCancel(s.Context()), "snpsuite")) })
	s.put(a, "two")
	b := s.machineID()
	_, err = s.Host.Create(s.Context(), hostapi.Create{ID: b, Snapshot: "snpsuite"})
	s.must(err)
	s.attached(b, hostapi.AttachedVolume{Volume: id, Mount: dir, Private: true, SizeMiB: sizeMiB})
	s.has(b, "one")
	s.has(a, "two")
	other := s.volume(hostapi.CreateVolume{})
	c := s.machineID()
	_, err = s.Host.Create(s.Context(), hostapi.Create{ID: c, Snapshot: "snpsuite",
		Volumes: []hostapi.VolumeAttachment{writer(other, 1)}})
	s.wants("a volume at the mount point of the snapshot's", err, hostapi.ErrInvalid)
	_, err = s.Host.Create(s.Context(), hostapi.Create{ID: c, Snapshot: "snpsuite",
		Volumes: []hostapi.VolumeAttachment{{Volume: other, Mount: "/mnt/more", Fence: 2}}})
	s.must(err)
	s.has(c, "one")
}

func (s *suite) hibernate() {
	id := s.volume(hostapi.CreateVolume{})
	a := s.machine(writer(id, 1))
	s.put(a, "one")
	s.must(s.Host.Hibernate(s.Context(), a))
	s.written(id, a, 1)
	_, err := s.Host.AttachVolume(s.Context(), s.machine(), writer(id, 2))
	s.wants("a second writer while the first is hibernated", err, hostapi.ErrInUse)
	_, err = s.Host.Wake(s.Context(), a)
	s.must(err)
	s.attached(a, hostapi.AttachedVolume{Volume: id, Mount: dir, SizeMiB: sizeMiB})
	s.has(a, "one")
}

func (s *suite) resize() {
	id := s.volume(hostapi.CreateVolume{})
	_, err := s.Host.ResizeVolume(s.Context(), id, sizeMiB-1)
	s.wants("making a volume smaller", err, hostapi.ErrInvalid)
	a := s.machine(writer(id, 1))
	s.put(a, "one")
	v, err := s.Host.ResizeVolume(s.Context(), id, 2*sizeMiB)
	s.must(err)
	if v.SizeMiB != 2*sizeMiB {
		s.Errorf("got %d MiB, want %d", v.SizeMiB, 2*sizeMiB)
	}
	s.attached(a, hostapi.AttachedVolume{Volume: id, Mount: dir, SizeMiB: 2 * sizeMiB})
	s.has(a, "one")
	_, err = s.Host.ResizeVolume(s.Context(), "volnone", 2*sizeMiB)
	s.wants("growing nothing", err, hostapi.ErrNotFound)
}

func (s *suite) detach() {
	id := s.volume(hostapi.CreateVolume{})
	a := s.machine()
	_, err := s.Host.AttachVolume(s.Context(), a, writer(id, 1))
	s.must(err)
	s.put(a, "one")
	s.must(s.Host.Hibernate(s.Context(), a))
	_, err = s.Host.DetachVolume(s.Context(), a, id, false)
	s.wants("detaching from a machine that is hibernated", err, hostapi.ErrWrongState)
	_, err = s.Host.DetachVolume(s.Context(), a, id, true)
	s.must(err)
	s.written(id, "", 1)
	b := s.machine(writer(id, 2))
	v, err := s.Host.GetVolume(s.Context(), id)
	s.must(err)
	if v.Dirty || v.Check == nil || v.Check.Result == "damaged" {
		s.Errorf("after the volume was attached again: dirty %v, check %+v", v.Dirty, v.Check)
	}
	_, err = s.Host.DetachVolume(s.Context(), b, "volnone", false)
	s.wants("detaching what is not attached", err, hostapi.ErrNotFound)
}

func (s *suite) backup() {
	if !s.Objects {
		s.Skip("the host has no object store")
	}
	ctx := s.Context()
	id := s.volume(hostapi.CreateVolume{})
	a := s.machine(writer(id, 1))
	s.put(a, "one")
	got, err := s.Host.BackupVolume(ctx, "wsp", id, "bkp1", map[string]string{"a": "b"})
	s.must(err)
	if got.SizeMiB != sizeMiB || got.Moment.IsZero() || !got.Moment.Equal(got.Moment.Truncate(time.Microsecond)) {
		s.Errorf("got backup %+v", got)
	}
	all, err := s.Host.Backups(ctx, "wsp")
	s.must(err)
	if len(all) != 1 || all[0].ID != "bkp1" || all[0].Volume != id || all[0].SizeMiB != sizeMiB ||
		all[0].Labels["a"] != "b" || !all[0].Moment.Equal(got.Moment) {
		s.Errorf("got backups %+v of %+v", all, got)
	}
	if all, err := s.Host.Backups(ctx, "other"); err != nil || len(all) != 0 {
		s.Errorf("backups of another workspace: %+v, %v", all, err)
	}
	s.put(a, "two")
	again, err := s.Host.BackupVolume(ctx, "wsp", id, "bkp1", nil)
	s.must(err)
	if !again.Moment.Equal(got.Moment) || again.Uploaded != 0 || again.Stored != got.Stored {
		s.Errorf("the same backup again is %+v, want %+v with nothing uploaded", again, got)
	}
	_, err = s.Host.BackupVolume(ctx, "wsp", s.volume(hostapi.CreateVolume{}), "bkp1", nil)
	s.wants("the id of another volume's backup", err, hostapi.ErrExists)
	_, err = s.Host.BackupVolume(ctx, "wsp", "volnone", "bkp2", nil)
	s.wants("a backup of nothing", err, hostapi.ErrNotFound)
	_, err = s.Host.RestoreVolume(ctx, "wsp", "bkp1", hostapi.CreateVolume{ID: id})
	s.wants("a restore to an id in use", err, hostapi.ErrExists)
	_, err = s.Host.RestoreVolume(ctx, "wsp", "bkp1", hostapi.CreateVolume{ID: "volsuitex", SizeMiB: sizeMiB - 1})
	s.wants("a restore to a smaller volume", err, hostapi.ErrInvalid)
	_, err = s.Host.RestoreVolume(ctx, "other", "bkp1", hostapi.CreateVolume{ID: "volsuiter"})
	s.wants("a backup of another workspace", err, hostapi.ErrNotFound)
	v, err := s.Host.RestoreVolume(ctx, "wsp", "bkp1", hostapi.CreateVolume{ID: "volsuiter"})
	s.must(err)
	s.Cleanup(func() { s.must(s.Host.DeleteVolume(context.WithoutCancel(ctx), v.ID)) })
	s.has(s.machine(writer(v.ID, 1)), "one")
	s.must(s.Host.DeleteBackup(ctx, "wsp", "bkp1"))
	s.must(s.Host.DeleteBackup(ctx, "wsp", "bkp1"))
	_, err = s.Host.RestoreVolume(ctx, "wsp", "bkp1", hostapi.CreateVolume{ID: "volsuitex"})
	s.wants("a deleted backup", err, hostapi.ErrNotFound)
}
