package build

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// spaceStep is how many bytes are charged to a workspace at least while a file grows. A large file grows in steps of an
// eighth of its size, so that it takes few transactions.
const spaceStep = 1 << 20

// space is disk space for files of builds, which is charged to the quota of a workspace before it is used.
//
// Its row in the store is named after the files, so that garbage collection can compare the two.
type space struct {
	s         *Service
	ctx       context.Context //nolint:containedctx // of the request or build that uses the space, and only during it
	workspace api.Workspace
	name      string // path of the files below the directory of builds

	mu            sync.Mutex
	used, charged int64
}

func (s *Service) newSpace(ctx context.Context, workspace api.Workspace, name string) *space {
	return &space{s: s, ctx: ctx, workspace: workspace, name: name}
}

// row returns the row of the space with a name and size.
func (sp *space) row(name string, bytes int64) *store.Upload {
	return &store.Upload{ID: sp.s.dirID + "/" + name, Dir: sp.s.dirID, Workspace: string(sp.workspace), Bytes: bytes,
		Changed: store.Micros(time.Now())}
}

// take charges n bytes that are about to be written. The error is quota_exceeded if the workspace may not have them.
func (sp *space) take(n int64) error {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.used+n <= sp.charged {
		sp.used += n
		return nil
	}
	step := max(spaceStep, sp.charged/8)
	more := (sp.used + n - sp.charged + step - 1) / step * step
	err := sp.s.db.Write(sp.ctx, "space take", func(ctx context.Context, tx *store.Tx) error {
		asked := quota.Amount{Kind: quota.Uploads, N: more}
		if err := sp.s.quotas.Admit(ctx, tx, sp.workspace, asked); err != nil {
			return err
		}
		return tx.PutUpload(ctx, sp.row(sp.name, sp.charged+more))
	})
	if err != nil {
		return api.AsError(err)
	}
	sp.charged += more
	sp.used += n
	return nil
}

// give returns n bytes that were taken, so that they can be taken again.
func (sp *space) give(n int64) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.used -= n
}

// moveTo makes the space that of other files, in the transaction that gives them to their owner. Space that was used by
// these files before is replaced.
func (sp *space) moveTo(ctx context.Context, tx *store.Tx, name string) error {
	if err := tx.DeleteUpload(ctx, sp.row(sp.name, 0).ID); err != nil {
		return err
	}
	return tx.PutUpload(ctx, sp.row(name, sp.used))
}

// release ends the charge.
func (sp *space) release() error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(sp.ctx), cleanupTimeout,
		errors.New("the charge for an upload could not be removed in time"))
	defer cancel()
	return sp.s.forgetSpace(ctx, sp.name)
}

// forgetSpace ends the charge for files that were removed.
func (s *Service) forgetSpace(ctx context.Context, name string) error {
	return s.db.Write(ctx, "space release", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteUpload(ctx, s.dirID+"/"+name)
	})
}

// spaceWriter charges a space with what is written through it.
type spaceWriter struct {
	w  io.Writer
	sp *space
	n  int64 // bytes written
}

// Write implements io.Writer.
func (w *spaceWriter) Write(p []byte) (int, error) {
	if err := w.sp.take(int64(len(p))); err != nil {
		return 0, err
	}
	n, err := w.w.Write(p)
	w.n += int64(n)
	return n, err
}

// openDirID reads the id of the directory of builds, which the first start makes. Several nodes may share a store, but
// not a directory.
func (s *Service) openDirID() error {
	path := s.dir("id")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 { // empty: the host failed while it was written
		data = []byte(strings.ToLower(rand.Text()))
		err = os.WriteFile(path, data, 0o600)
	}
	s.dirID = string(data)
	return err
}

// Names of space, as paths below the directory of builds.
func inputSpace(build string) string { return "inputs/" + build }
func imageSpace(build string) string { return "images/" + build }
func spoolSpace(path string) string  { return "spool/" + filepath.Base(path) }
func (s *Service) spaceOf(path string) string {
	name, err := filepath.Rel(s.cfg.Dir, path)
	if err != nil { // both are absolute or both relative
		return path
	}
	return filepath.ToSlash(name)
}

// gcSpace compares the charged space with the files that exist: it ends charges for files that are gone, and charges
// files that an earlier version of this program did not charge.
func (s *Service) gcSpace(ctx context.Context) error {
	rows, err := s.db.Read().Uploads(ctx, s.dirID)
	if err != nil {
		return err
	}
	var all error
	charged := map[string]bool{}
	for _, r := range rows {
		name := strings.TrimPrefix(r.ID, s.dirID+"/")
		charged[name] = true
		if s.spaceInUse(name) || time.Since(store.Time(r.Changed)) < s.cfg.OrphanGrace {
			continue
		}
		all = errors.Join(all, s.forgetSpace(ctx, name))
	}
	return errors.Join(all, s.chargeFiles(ctx, charged))
}

// spaceInUse reports whether files with a name exist, or the build that downloads the layers of an image.
func (s *Service) spaceInUse(name string) bool {
	if build, ok := strings.CutPrefix(name, imageSpace("")); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.active[build] != nil
	}
	_, err := os.Lstat(s.dir(filepath.FromSlash(name)))
	return !errors.Is(err, fs.ErrNotExist)
}

// chargeFiles charges inputs and files that have no row.
func (s *Service) chargeFiles(ctx context.Context, charged map[string]bool) error {
	workspaces, err := s.db.Read().Workspaces(ctx, store.WorkspaceQuery{})
	if err != nil {
		return err
	}
	owners := map[string]string{}
	for _, w := range workspaces {
		owners[ownerDir(api.Workspace(w.ID))] = w.ID
	}
	files, err1 := filepath.Glob(s.dir("files", "*", "*"))
	inputs, err2 := filepath.Glob(s.dir("inputs", "*", "input"))
	all := errors.Join(err1, err2)
	charge := func(name, workspace, path string) {
		info, err := os.Stat(path)
		if charged[name] || workspace == "" || err != nil || time.Since(info.ModTime()) < s.cfg.OrphanGrace {
			return
		}
		sp := space{s: s, workspace: api.Workspace(workspace)}
		all = errors.Join(all, s.db.Write(ctx, "space adopt", func(ctx context.Context, tx *store.Tx) error {
			return tx.PutUpload(ctx, sp.row(name, info.Size()))
		}))
	}
	for _, path := range files {
		charge(s.spaceOf(path), owners[filepath.Base(filepath.Dir(path))], path)
	}
	for _, path := range inputs {
		id := filepath.Base(filepath.Dir(path))
		if row, err := s.db.Read().Build(ctx, id); err == nil {
			charge(inputSpace(id), row.Workspace, path)
		}
	}
	return all
}
