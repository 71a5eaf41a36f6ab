// Package nodebackup makes backups of whole nodes and restores them.
//
// A backup is the data directory of a node as of a moment, as a crash of the host at that moment would leave it,
// without what a start makes again. The node may run meanwhile. A restored node recovers from it as from a crash:
// hibernated sandboxes are hibernated, persistent ones that ran have failed and keep their disks, others have ended.
//
// Backups are kept in a repository of their own in an object store or a directory, whose format is that of package
// chunkstore: content is deduplicated, compressed and encrypted. The master key of the repository is stored there,
// sealed under a passphrase. All keys of the node are in its backups, so the passphrase opens everything.
//
// Create stages first: it clones files (reflinks) one after another, and makes sure that the files of one machine,
// volume or snapshot are of one moment. Then it pushes the clones. The manifest that makes a backup complete is stored
// last; an attempt that fails or is killed leaves no backup, and the next one removes what it left. The order in which
// things are staged makes what is in a backup refer to what is in it.
package nodebackup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// stageDir holds the copies while a backup is made, below the data directory.
const stageDir = "run/backup"

// ErrBusy says that another backup of the same data directory is being made.
var ErrBusy = errors.New("another backup of this data directory is being made; wait until it is done")

// Source is the node that a backup is made of.
type Source struct {
	DataDir string
	Key     string // file with the master key of the object store; "": it is in the data directory
	Release string // of this program
	// OnStep, for tests, is called after every step; an error ends the backup there. With ErrAbandon everything stays
	// as it is, as after a kill of this process.
	OnStep func(step string) error
	OnCopy func(path string) // for tests: called after every file that was copied
}

// ErrAbandon ends an operation, in tests, as a kill of the process would.
var ErrAbandon = errors.New("abandoned")

// step is a part of an operation.
type step struct {
	name string
	do   func(ctx context.Context) error
}

// run performs steps in order.
func run(ctx context.Context, steps []step, onStep func(string) error) error {
	for _, s := range steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if onStep != nil {
			if err := onStep(s.name); err != nil {
				return err
			}
		}
	}
	return nil
}

// lock locks the making of backups of a data directory until the file is closed.
func lock(dataDir string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Join(dataDir, "run"), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dataDir, "run", "backup.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrBusy
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Sweep removes what a backup left whose process was killed. It does nothing while one is being made.
func Sweep(dataDir string) error {
	held, err := lock(dataDir)
	if errors.Is(err, ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(dataDir, stageDir)), held.Close())
}

// Create makes a backup of a node, which may run.
func (r *Repository) Create(ctx context.Context, src Source) (b Backup, err error) {
	dir, err := filepath.Abs(src.DataDir)
	if err != nil {
		return b, err
	}
	if _, err := os.Stat(filepath.Join(dir, databaseFile)); err != nil {
		return b, fmt.Errorf("%s holds no data of a node (%w): name its directory with --data-dir; if it is on "+
			"an image that is not mounted, start the node first", dir, err)
	}
	held, err := lock(dir)
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	s := &stage{source: dir, dir: filepath.Join(dir, stageDir), known: map[string]bool{}, onCopy: src.OnCopy}
	if err := os.RemoveAll(s.dir); err != nil {
		return b, err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return b, err
	}
	defer func() {
		if !errors.Is(err, ErrAbandon) {
			err = errors.Join(err, os.RemoveAll(s.dir))
		}
	}()
	now := time.Now().UTC().Truncate(time.Millisecond)
	d := &description{Version: formatVersion, Release: src.Release, Created: now, Host: hostOf(dir)}
	id := newID(now)
	steps := append(s.steps(src.Key),
		step{"push files", func(ctx context.Context) error { return r.pushParts(ctx, id, d, s) }},
		step{"push index", func(ctx context.Context) error { return r.pushIndex(ctx, id, d, s) }},
	)
	if err := run(ctx, steps, src.OnStep); err != nil {
		return b, fmt.Errorf("backup of %s: %w", dir, err)
	}
	return d.backup(id), nil
}

// hostOf returns the id of the host that a data directory belongs to; "" if it has none yet.
func hostOf(dir string) string {
	data, err := os.ReadFile(filepath.Join(dir, hostFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// Host returns the id of the host that a data directory belongs to, for Clean.
func Host(dataDir string) string { return hostOf(dataDir) }

// Bounds of one manifest, far below those of package chunkstore.
const (
	partBytes = 64 << 30
	partFiles = 20_000
)

// pushParts stores the content of all files, in manifests of a bounded size.
func (r *Repository) pushParts(ctx context.Context, id ID, d *description, s *stage) error {
	slices.SortStableFunc(s.entries, func(a, b entry) int { return cmp.Compare(a.Path, b.Path) })
	var files []chunkstore.LocalFile
	size := int64(0)
	push := func() error {
		if len(files) == 0 {
			return nil
		}
		part := chunkstore.ID(fmt.Sprintf("%s%s%d", id, partSuffix, len(d.Parts)))
		in := chunkstore.Push{Tenant: tenant, ID: part, Meta: json.RawMessage("{}"), Files: files}
		m, _, err := r.chunks.Push(ctx, in)
		if err != nil {
			return err
		}
		d.Parts, d.Stored, files, size = append(d.Parts, part), d.Stored+m.Stored(), nil, 0
		return nil
	}
	for i := range s.entries {
		e := &s.entries[i]
		if e.Kind != kindFile {
			continue
		}
		if len(files) == partFiles || size+e.blocks > partBytes {
			if err := push(); err != nil {
				return err
			}
		}
		e.Part, e.Name = len(d.Parts), fmt.Sprintf("f%d", i)
		files, size = append(files, chunkstore.LocalFile{Name: e.Name, Path: e.staged}), size+e.blocks
		d.Files, d.Bytes = d.Files+1, d.Bytes+e.blocks
	}
	return push()
}

// pushIndex stores the manifest that makes the backup complete.
func (r *Repository) pushIndex(ctx context.Context, id ID, d *description, s *stage) error {
	d.Schema = s.schema
	data, err := json.Marshal(index{s.entries})
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, indexFile)
	if err := durable.Replace(path, data, 0o600); err != nil {
		return err
	}
	meta, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, _, err = r.chunks.Push(ctx, chunkstore.Push{
		Tenant: tenant, ID: chunkstore.ID(id), Meta: meta, Files: []chunkstore.LocalFile{{Name: indexFile, Path: path}},
	})
	return err
}
