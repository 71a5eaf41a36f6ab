//go:build vm

package machine

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// TestPublishedStartsFromPreMount publishes templates with disks of several sizes: each starts from the pre-mount
// snapshot, mounts its own disk, and has an identity of its own.
func TestPublishedStartsFromPreMount(t *testing.T) {
	l := host(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*timeout)
	defer cancel()
	base := l.create(t, hostapi.Create{ID: "published", Template: template})
	l.run(t, base.ID, "echo of the disk > /root/mark; echo of the memory > /dev/shm/mark; sync")
	if _, err := l.TakeSnapshot(ctx, base.ID, "layer", nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.DeleteSnapshot(context.Background(), "layer") })
	destroy(t, base.ID)
	list, err := l.Templates(ctx)
	if err != nil {
		t.Fatal(err)
	}
	disk := 0
	for _, b := range list {
		if b.Name == template {
			disk = b.DiskMiB
		}
	}
	seen := map[string]string{}
	for i, more := range []int{0, 64, 0} {
		name := hostapi.TemplateName("ground" + string(rune('a'+i)))
		var lines []string
		progress, err := l.Publish(ctx, hostapi.Publish{
			Name:     name,
			Snapshot: "layer",
			DiskMiB:  disk + more,
			User:     "root",
			Workdir:  "/root",
			Env:      map[string]string{"COLOUR": "red"},
			Start:    "echo $COLOUR > /root/started; exec sleep 100000",
			Ready:    "test -e /root/started",
		})
		if err != nil {
			t.Fatal(err)
		}
		made, err := hostapi.AwaitPublish(ctx, progress, func(_, line string) { lines = append(lines, line) })
		if err != nil {
			t.Fatalf("%v\n%s", err, strings.Join(lines, "\n"))
		}
		t.Cleanup(func() {
			if err := l.DeleteTemplate(context.Background(), name); err != nil {
				t.Error(err)
			}
		})
		if made.Bytes == 0 || made.DiskMiB != disk+more {
			t.Errorf("published template = %+v", made)
		}
		if first := strings.Contains(strings.Join(lines, "\n"), "booted for the first time"); first != (i == 0) {
			t.Errorf("template %d: %q", i, lines)
		}
		id := hostapi.MachineID("on" + string(name))
		l.create(t, hostapi.Create{ID: id, Template: name})
		got := l.run(
			t,
			id,
			"cat /root/mark /root/started; ls /dev/shm; hostname; pgrep -x sleep >/dev/null && echo runs; "+
				fmt.Sprintf("set -- $(df -m / | tail -1); [ $2 -gt %d ] && echo whole", (disk+more)*9/10),
		)
		want := "of the disk\nred\n" + string(id) + "\nruns\nwhole"
		if got != want {
			t.Errorf("in a machine of template %d: %q, want %q", i, got, want)
		}
		for what, script := range map[string]string{
			"entropy": "head -c 16 /dev/urandom | od -An -tx1",
			"boot id": "cat /proc/sys/kernel/random/boot_id",
		} {
			text := l.run(t, id, script)
			if seen[text] != "" || strings.TrimSpace(text) == "" {
				t.Errorf("%s of template %d = %q, want another than that of %s", what, i, text, seen[text])
			}
			seen[text] = string(name)
		}
		destroy(t, id)
	}
	if list, err := filepath.Glob(filepath.Join(l.dir, "grounds", "*")); err != nil || len(list) != 1 {
		t.Errorf("pre-mount snapshots = %v, %v; want one", list, err)
	}
	if left, err := filepath.Glob(filepath.Join(l.dir, "bake", "*.new")); err != nil || len(left) != 0 {
		t.Errorf("leftovers of bakes = %v, %v; want none", left, err)
	}
}
