//go:build root

package firecracker_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fctest"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// TestBootRequests boots a machine and checks all requests in order: an entropy device, a balloon
// with free page reporting, room for memory and disks, rate limits, and drives that honor flushes.
func TestBootRequests(t *testing.T) {
	w := newFixture(t, "1.15.1")
	d := w.open(t)
	s := w.emptySpec(t, "described")
	s.Disks[0].Rate = vmm.Rate{Bytes: 1 << 20, Ops: 100}
	s.NIC = &vmm.NIC{Device: "test0", MAC: net.HardwareAddr{6, 0, 0, 0, 0, 1}, Out: vmm.Rate{Bytes: 5}}
	m, err := d.Boot(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	all := w.requests(t, s.ID)
	drive := `"cache_type":"Writeback","io_engine":"Sync"`
	for i, want := range []struct{ op, body string }{
		{"PUT /boot-source", "memhp_default_state=online_movable pandastack.channel=vsock:5252 8250.nr_uarts=0 " +
			"quiet loglevel=1"},
		{"PUT /machine-config", `{"vcpu_count":1,"mem_size_mib":64,"smt":false,"track_dirty_pages":false,` +
			`"huge_pages":"None"}`},
		{"PUT /vsock", `{"guest_cid":3,"uds_path":"v.sock"}`},
		{"PUT /entropy", `{}`},
		{"PUT /balloon", `{"amount_mib":0,"deflate_on_oom":true,"free_page_reporting":true}`},
		{"PUT /drives/disk0", drive + `,"rate_limiter":{"bandwidth":{"size":1048576,"refill_time":1000},` +
			`"ops":{"size":100,"refill_time":1000}}}`},
		{"PUT /drives/disk1", `{"drive_id":"disk1","path_on_host":"disk1","is_root_device":false,` +
			`"is_read_only":false,` + drive + `}`},
		{"PUT /drives/disk2", drive + `}`},
		{"PUT /network-interfaces/eth0", `"guest_mac":"06:00:00:00:00:01","tx_rate_limiter":{"bandwidth":{"size":5,` +
			`"refill_time":1000},"ops":{"size":0,"refill_time":0}}}`},
		{"PUT /mmds/config", `{"version":"V2","network_interfaces":["eth0"]}`},
		{"PUT /hotplug/memory", `{"total_size_mib":256,"slot_size_mib":128,"block_size_mib":2}`},
		{"PUT /actions", "InstanceStart"},
	} {
		if i >= len(all) || all[i].Op != want.op || !strings.Contains(all[i].Body, want.body) {
			t.Errorf("request %d of %v: want %s with %s", i, all, want.op, want.body)
		}
	}
}

// emptySpec returns a machine with an empty disk and without confinement.
func (w *fixture) emptySpec(t *testing.T, id string) vmm.Spec {
	t.Helper()
	s := w.spec
	s.ID, s.Dir, s.Confine = id, filepath.Join(w.dir, id), vmm.Confine{}
	s.Disks = []vmm.Disk{{Path: filepath.Join(w.dir, id+".disk")}}
	if err := errors.Join(os.Mkdir(s.Dir, 0o711),
		os.WriteFile(s.Disks[0].Path, make([]byte, diskBytes), 0o600)); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLeftoverFiles starts a machine where sockets and files of another one exist under the names
// that the monitor and the driver use.
func TestLeftoverFiles(t *testing.T) {
	w := newFixture(t, "1.17.0")
	d := w.open(t)
	s := w.emptySpec(t, "again")
	root := filepath.Join(s.Dir, "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"api.sock", "v.sock", "uffd.sock", "disk0", "memory", "state"} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(root, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	m, err := d.Boot(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	w.nothingLeft(t, s)
}

// TestColdCapturesAreFull captures a booted machine twice. It has no dirty page tracking, so both
// captures must be full. A loaded machine gets diff snapshots.
func TestColdCapturesAreFull(t *testing.T) {
	w := newFixture(t, "1.17.0")
	h := vmmtest.Bake(t, w.lab())
	s := w.emptySpec(t, "cold")
	cold, err := h.Driver.Boot(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	warm := h.Restore(t)
	for _, m := range []vmm.Machine{cold, warm.Machine} {
		for range 2 {
			if err := m.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			c, err := m.Capture(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(c.Close(), m.Resume(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cold.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	for id, want := range map[string]string{"cold": "Full Full ", warm.Spec.ID: "Diff Diff "} {
		if got := kinds(w.requests(t, id)); got != want {
			t.Errorf("got snapshots %s of machine %s, want %s", got, id, want)
		}
	}
}

// kinds returns the snapshot types of one machine.
func kinds(all []fctest.Request) string {
	got := ""
	for _, r := range all {
		if r.Op == "PUT /snapshot/create" {
			_, kind, _ := strings.Cut(r.Body, `"snapshot_type":"`)
			got += kind[:4] + " "
		}
	}
	return got
}
