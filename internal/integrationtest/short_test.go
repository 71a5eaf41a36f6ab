package integrationtest_test

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// listResources lists the files of machines and snapshots, and the running monitors.
func listResources(t *testing.T, w *integrationtest.Platform) []string {
	t.Helper()
	var all []string
	for _, dir := range []string{"machines", "snapshots", "drafts"} {
		err := filepath.WalkDir(filepath.Join(w.Dir, dir), func(p string, _ fs.DirEntry, err error) error {
			all = append(all, p)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range w.Driver.Monitors() {
		all = append(all, "monitor "+id)
	}
	slices.Sort(all)
	return all
}

// TestShortOfMemoryOrDisk runs operations on a host without free memory and on one without free disk space. Each must
// fail with an error that says what is short and how to free it, create nothing, and succeed when there is room again.
func TestShortOfMemoryOrDisk(t *testing.T) {
	for _, tt := range []struct {
		name         string
		memory, disk int64
		code         api.Code
		want         []string
		verbs        []string
	}{
		{
			"memory", 100 << 20, 1 << 40, api.NoCapacity,
			[]string{"memory", "delete or hibernate"},
			[]string{"create", "fork", "fork-tree", "wake"},
		},
		{
			"disk", 1 << 36, 100 << 20, api.NoSpace,
			[]string{"disk", "delete snapshots"},
			[]string{"create", "fork", "fork-tree", "snapshot", "hibernate"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := integrationtest.New(t)
			parent, asleep := create(t, w, api.CreateRequest{}), create(t, w, api.CreateRequest{Persistent: true})
			sh(t, w, asleep.ID, "echo kept > /tmp/file")
			boxes := w.Client.Sandboxes
			if err := boxes.Hibernate(t.Context(), asleep.ID); err != nil {
				t.Fatal(err)
			}
			do := map[string]func() error{
				"create": func() error { _, err := boxes.Create(t.Context(), api.CreateRequest{}); return err },
				"fork": func() error {
					_, err := boxes.Fork(t.Context(), parent.ID, api.ForkRequest{Count: 1})
					return err
				},
				"fork-tree": func() error {
					_, err := boxes.ForkTree(t.Context(), parent.ID, api.ForkTreeRequest{Count: 3})
					return err
				},
				"wake": func() error { return boxes.Wake(t.Context(), asleep.ID) },
				"snapshot": func() error {
					_, err := boxes.Snapshot(t.Context(), parent.ID, api.SnapshotRequest{})
					return err
				},
				"hibernate": func() error { return boxes.Hibernate(t.Context(), parent.ID) },
			}
			before := listResources(t, w)
			for _, verb := range tt.verbs {
				w.SetFree(tt.memory, tt.disk)
				err := do[verb]()
				if api.CodeOf(err) != tt.code {
					t.Errorf("%s: error %v, want code %s", verb, err, tt.code)
					continue
				}
				for _, word := range tt.want {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("%s: error %q, want it to contain %q", verb, err, word)
					}
				}
				if after := listResources(t, w); !slices.Equal(before, after) {
					t.Errorf(
						"resources after a failed %s:\n%s\nwant those before:\n%s",
						verb,
						strings.Join(after, "\n"),
						strings.Join(before, "\n"),
					)
				}
			}
			if got := sh(t, w, parent.ID, "echo on"); got != "on" {
				t.Errorf("output in the running sandbox = %q, want on", got)
			}
			w.SetFree(1<<36, 1<<40)
			for _, verb := range tt.verbs {
				if err := do[verb](); err != nil {
					t.Errorf("%s with enough room: %v", verb, err)
				}
			}
			if got := sh(t, w, asleep.ID, "cat /tmp/file"); got != "kept" {
				t.Errorf("file in the hibernated sandbox = %q, want kept", got)
			}
		})
	}
}
