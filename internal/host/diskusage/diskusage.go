// Package diskusage says what the space of a data directory is used for.
//
// It owns the table of uses, and no file: it reads sizes alone, so it may be used while a node runs. Files that share
// blocks (reflinks) are each counted in full in Bytes. OwnBytes are those that no other file has, and SharedBytes those
// that several have, once.
package diskusage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// Use is one thing that space is used for.
type Use struct {
	Name     string `json:"name"`
	Files    int    `json:"files"`
	Bytes    int64  `json:"bytes"`            // on the disk, with what is shared with others
	OwnBytes int64  `json:"own_bytes"`        // that no other file shares: what removing all of it makes free
	Remove   string `json:"remove,omitempty"` // how users remove it; "": the node needs it, or removes it itself
}

// Usage is what the space of a data directory is used for.
type Usage struct {
	DataDir     string `json:"data_dir"`
	Uses        []Use  `json:"uses"`
	SharedBytes int64  `json:"shared_bytes"` // that several files share, and what the file system needs itself
	TotalBytes  int64  `json:"total_bytes"`  // of the file system
	FreeBytes   int64  `json:"free_bytes"`
}

// Names of uses.
const (
	templates  = "templates"
	snapshots  = "snapshots"
	hibernated = "hibernated"
	machines   = "sandboxes"
	volumes    = "volumes"
	databases  = "databases"
	apps       = "apps"
	functions  = "functions"
	builds     = "builds"
	records    = "records"
	kernels    = "kernels"
	caches     = "caches"
	ballast    = "ballast"
	other      = "other"
)

// table has the uses in the order of the result.
var table = []Use{
	{Name: templates, Remove: "pandastack template delete NAME"},
	{Name: snapshots, Remove: "pandastack snapshot delete ID"},
	{Name: hibernated, Remove: "pandastack sandbox delete ID"},
	{Name: machines, Remove: "pandastack sandbox delete ID"},
	{Name: volumes, Remove: "pandastack volume delete ID"},
	{Name: databases, Remove: "pandastack db delete ID"},
	{Name: apps, Remove: "pandastack app delete NAME"},
	{Name: functions, Remove: "pandastack fn delete NAME"},
	{Name: builds},
	{Name: records},
	{Name: kernels},
	{Name: caches, Remove: "rm -r cache chunks registry (node stopped)"},
	{Name: ballast},
	{Name: other},
}

// uses maps the entries of a data directory to names of uses. Of snapshots, those without a name are hibernated memory.
var uses = map[string]string{
	"templates": templates, "grounds": templates, "bake": templates, "snapshots": snapshots, "machines": machines,
	"volumes": volumes, "volumes-bases": caches, "databases": databases, "apps": apps, "functions": functions,
	"builds": builds, "images": builds, "drafts": builds, "control.db": records, "control.db-wal": records,
	"control.db-shm": records, "kernel": kernels, "jail": kernels, "qemu": kernels, "cache": caches, "chunks": caches,
	"registry": caches, "ballast": ballast,
}

// Measure measures a data directory. What disappears meanwhile is left out.
func Measure(ctx context.Context, dataDir string) (Usage, error) {
	if _, err := os.Stat(filepath.Join(dataDir, "control.db")); err != nil {
		return Usage{}, fmt.Errorf("%s holds no data of a node (%w): name its directory with --data-dir; if it is on "+
			"an image that is not mounted, start the node first", dataDir, err)
	}
	free, total, err := disk.Free(dataDir)
	if err != nil {
		return Usage{}, err
	}
	found, err := scan(ctx, dataDir)
	if err != nil {
		return Usage{}, err
	}
	sums := map[string]*Use{}
	out := Usage{DataDir: dataDir, TotalBytes: total, FreeBytes: free, SharedBytes: total - free}
	for _, u := range table {
		sums[u.Name] = &u
	}
	for _, f := range found {
		u := sums[f.use]
		u.Files, u.Bytes, u.OwnBytes = u.Files+1, u.Bytes+f.bytes, u.OwnBytes+f.own
		out.SharedBytes -= f.own
	}
	out.SharedBytes = max(0, out.SharedBytes)
	for _, u := range table {
		out.Uses = append(out.Uses, *sums[u.Name])
	}
	return out, nil
}

// file is one file of a data directory.
type file struct {
	path, use  string
	bytes, own int64
}

// scan finds and measures the files of a data directory. It does not enter other file systems.
func scan(ctx context.Context, dataDir string) ([]*file, error) {
	var all []*file
	root, err := device(dataDir)
	if err != nil {
		return nil, err
	}
	anonymous := map[string]bool{} // directories of snapshots without a name
	err = filepath.WalkDir(dataDir, func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return ignoreMissing(err)
		}
		rel, err := filepath.Rel(dataDir, path)
		if err != nil {
			return err
		}
		parts := strings.Split(rel, "/")
		if e.IsDir() {
			if on, err := device(path); err != nil || on != root {
				return errors.Join(ignoreMissing(err), fs.SkipDir)
			}
			if len(parts) == 2 && parts[0] == snapshots {
				anonymous[path] = isAnonymous(path)
			}
			return nil
		}
		if !e.Type().IsRegular() {
			return nil
		}
		f := &file{path: path, use: other}
		if use, ok := uses[parts[0]]; ok {
			f.use = use
		}
		if f.use == snapshots && len(parts) > 2 && anonymous[filepath.Join(dataDir, parts[0], parts[1])] {
			f.use = hibernated
		}
		all = append(all, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("measure %s: %w", dataDir, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, f := range all {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return ignoreMissing(f.measure())
		})
	}
	return all, g.Wait()
}

// measure reads the sizes of a file.
func (f *file) measure() error {
	info, err := os.Lstat(f.path)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Blocks == 0 {
		return nil
	}
	f.bytes = st.Blocks * 512
	own, err := disk.Allocated(f.path)
	f.own = min(own, f.bytes)
	return err
}

func device(path string) (uint64, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	return st.Dev, nil
}

// isAnonymous reports whether a directory is a snapshot without a name: the memory of a hibernated machine.
func isAnonymous(dir string) bool {
	var snap struct {
		Anonymous bool `json:"anonymous"`
	}
	return durable.ReadJSON(filepath.Join(dir, "snapshot.json"), &snap) == nil && snap.Anonymous
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
