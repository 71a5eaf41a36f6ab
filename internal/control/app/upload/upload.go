// Package upload keeps the archives that deployments of apps are made of.
//
// An archive is a tar stream, compressed or not, with the files of a working tree. It is kept as it came: only
// machines of builds unpack it. It is charged to the workspace's quota upload_mib while it grows, and removed after a
// day or with its app.
//
// All methods may be called concurrently. Run removes what has expired, and what earlier processes left.
package upload

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Config configures a Service. Zero durations mean the default.
type Config struct {
	Dir      string        // for this package alone
	MaxBytes int64         // of one archive
	Keep     time.Duration // how long an archive can be deployed; a day
	Interval time.Duration // between looks at all archives; 10 min
}

// Service keeps archives. Make it with New.
type Service struct {
	cfg    Config
	db     *store.DB
	quotas *quota.Quotas
	log    *slog.Logger
	dirID  string // under which the store knows the directory

	mu     sync.Mutex
	active map[string]bool // ids of uploads under way; guarded by mu
}

// New returns a Service. It makes its directories.
func New(cfg Config, db *store.DB, quotas *quota.Quotas, log *slog.Logger) (*Service, error) {
	if cfg.Dir == "" || cfg.MaxBytes <= 0 || db == nil || quotas == nil || log == nil {
		return nil, errors.New("upload: a directory, a size, store, quotas and log are required")
	}
	if cfg.Keep <= 0 {
		cfg.Keep = 24 * time.Hour
	}
	if cfg.Interval <= 0 {
		cfg.Interval = 10 * time.Minute
	}
	s := &Service{cfg: cfg, db: db, quotas: quotas, log: log, active: map[string]bool{}}
	if err := os.MkdirAll(s.dir(spool), 0o700); err != nil {
		return nil, err
	}
	return s, s.openID()
}

// spool is the directory of uploads under way.
const spool = "spool"

// openID reads the id of the directory, which the first process makes. Several nodes may share a store, but not a
// directory.
func (s *Service) openID() error {
	data, err := os.ReadFile(s.dir("id"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 { // empty: the host failed while it was written
		data = []byte("apps-" + strings.ToLower(rand.Text()))
		err = durable.WriteFile(s.dir("id"), data, 0o600)
	}
	s.dirID = string(data)
	return err
}

func (s *Service) dir(names ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, names...)...)
}

// path returns where an archive is.
func (s *Service) path(app api.AppID, id string) string { return s.dir(string(app), id) }

// row returns the row under which an archive is charged.
func (s *Service) row(workspace api.Workspace, app api.AppID, id string, size int64) *store.Upload {
	return &store.Upload{ID: s.dirID + "/" + string(app) + "/" + id, Dir: s.dirID, Workspace: string(workspace),
		Bytes: size, Changed: store.Micros(time.Now())}
}

// Upload keeps an archive for an app. The error is too_large, quota_exceeded or no_space if it cannot be kept.
func (s *Service) Upload(ctx context.Context, p auth.Principal, app api.App, r io.Reader) (api.AppUpload, error) {
	out, err := s.upload(ctx, p, app.ID, r)
	if err != nil {
		return out, api.AsError(err)
	}
	return out, nil
}

func (s *Service) upload(
	ctx context.Context,
	p auth.Principal,
	app api.AppID,
	r io.Reader,
) (out api.AppUpload, err error) {
	if !app.Valid() { // it names a directory
		return out, api.Errorf(api.NotFound, "app %.60q not found", app)
	}
	id := api.NewUploadID()
	s.setActive(id, true)
	defer s.setActive(id, false)
	f, err := os.OpenFile(s.dir(spool, id), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return out, noSpace(err)
	}
	w := &writer{s: s, ctx: ctx, workspace: p.Workspace, app: app, id: id, f: f}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, w.discard())
		}
	}()
	if _, err = io.Copy(w, r); err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok {
			return out, e
		}
		return out, api.Wrap(api.Invalid, err, fmt.Sprintf("the upload was interrupted: %v", err))
	}
	format, err := formatOf(f, w.size)
	if err != nil {
		return out, err
	}
	if err := f.Sync(); err != nil {
		return out, noSpace(err)
	}
	if err := os.MkdirAll(s.dir(string(app)), 0o700); err != nil {
		return out, noSpace(err)
	}
	if err := durable.Rename(s.dir(spool, id), s.path(app, id)); err != nil {
		return out, noSpace(err)
	}
	return api.AppUpload{ID: id, Bytes: w.size, Format: format, ExpiresAt: time.Now().Add(s.cfg.Keep).UTC()}, nil
}

func (s *Service) setActive(id string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is {
		s.active[id] = true
	} else {
		delete(s.active, id)
	}
}

func (s *Service) isActive(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[id]
}

// noSpace returns err with the code no_space if the disk is full.
func noSpace(err error) error {
	if durable.IsNoSpace(err) {
		return api.Wrap(api.NoSpace, err, "the disk of the node is full")
	}
	return err
}

// chargeStep is how many bytes are charged at least while an archive grows. A large one grows in steps of an eighth of
// its size, so that it takes few transactions.
const chargeStep = 1 << 20

// writer writes an archive that is coming in, and charges it.
type writer struct {
	s             *Service
	ctx           context.Context //nolint:containedctx // of the request, and only during it
	workspace     api.Workspace
	app           api.AppID
	id            string
	f             *os.File
	size, charged int64
}

// Write implements io.Writer.
func (w *writer) Write(p []byte) (int, error) {
	if err := context.Cause(w.ctx); err != nil {
		return 0, err
	}
	if w.size+int64(len(p)) > w.s.cfg.MaxBytes {
		return 0, api.Errorf(api.TooLarge, "the archive is larger than %d MiB: leave out what the build makes itself",
			w.s.cfg.MaxBytes>>20)
	}
	if err := w.charge(int64(len(p))); err != nil {
		return 0, err
	}
	n, err := w.f.Write(p)
	w.size += int64(n)
	return n, noSpace(err)
}

// charge charges bytes that are about to be written.
func (w *writer) charge(n int64) error {
	if w.size+n <= w.charged {
		return nil
	}
	step := max(chargeStep, w.charged/8)
	more := (w.size + n - w.charged + step - 1) / step * step
	more = max(min(more, w.s.cfg.MaxBytes-w.charged), w.size+n-w.charged)
	err := w.s.db.Write(w.ctx, "app upload", func(ctx context.Context, tx *store.Tx) error {
		asked := quota.Amount{Kind: quota.Uploads, N: more}
		if err := w.s.quotas.Admit(ctx, tx, w.workspace, asked); err != nil {
			return err
		}
		return tx.PutUpload(ctx, w.s.row(w.workspace, w.app, w.id, w.charged+more))
	})
	if err == nil {
		w.charged += more
	}
	return err
}

// discard removes an archive that is not kept. Run removes what cannot be removed here.
func (w *writer) discard() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), time.Minute)
	defer cancel()
	return errors.Join(durable.RemoveAll(w.s.dir(spool, w.id)), durable.RemoveAll(w.s.path(w.app, w.id)),
		w.s.forget(ctx, w.s.row("", w.app, w.id, 0).ID))
}

func (s *Service) forget(ctx context.Context, row string) error {
	return s.db.Write(ctx, "app upload forget", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteUpload(ctx, row)
	})
}

// The formats of archives.
const (
	Tar     = "tar"
	TarGzip = "tar.gz"
	TarZstd = "tar.zst"
)

// block is the size of a header in a tar archive.
const block = 512

// formatOf returns the format of an archive by how it begins.
func formatOf(r io.ReaderAt, size int64) (string, error) {
	head := make([]byte, block)
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	head = head[:n]
	switch {
	case size == 0:
		return "", api.Errorf(api.Invalid, "the body is empty: send a tar archive, which may be compressed")
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		return TarGzip, nil
	case bytes.HasPrefix(head, []byte("\x28\xb5\x2f\xfd")):
		return TarZstd, nil
	case n == block && string(head[257:262]) == "ustar":
		return Tar, nil
	case n == block && len(bytes.Trim(head, "\x00")) == 0:
		return "", api.Errorf(api.Invalid, "the archive has no files")
	}
	return "", api.Errorf(api.Invalid,
		"the body is not a tar archive: send one in the POSIX or GNU format, plain or compressed by gzip or zstd")
}

// Archive describes an archive.
type Archive struct {
	Format string
	Bytes  int64
}

// Has returns an error with the code not_found unless an app has an archive.
func (s *Service) Has(app api.AppID, id string) error {
	_, err := s.stat(app, id)
	return err
}

func (s *Service) stat(app api.AppID, id string) (fs.FileInfo, error) {
	gone := api.Errorf(api.NotFound, "upload %.60q not found: the files of an upload can be deployed for %s; "+
		"upload them again", id, s.cfg.Keep)
	if !app.Valid() || !api.ValidUploadID(id) {
		return nil, gone
	}
	info, err := os.Stat(s.path(app, id))
	if errors.Is(err, fs.ErrNotExist) || err == nil && time.Since(info.ModTime()) > s.cfg.Keep {
		return nil, gone
	}
	return info, err
}

// Open returns the content of an archive. The error has the code not_found if the app does not have it.
func (s *Service) Open(_ context.Context, app api.AppID, id string) (Archive, io.ReadCloser, error) {
	info, err := s.stat(app, id)
	if err != nil {
		return Archive{}, nil, api.AsError(err)
	}
	f, err := os.Open(s.path(app, id))
	if err != nil {
		return Archive{}, nil, api.AsError(err)
	}
	format, err := formatOf(f, info.Size())
	if err != nil {
		return Archive{}, nil, errors.Join(err, f.Close())
	}
	return Archive{Format: format, Bytes: info.Size()}, f, nil
}

// Forget removes the archives of an app that was deleted.
func (s *Service) Forget(ctx context.Context, app api.AppID) error {
	if !app.Valid() {
		return nil
	}
	if err := durable.RemoveAll(s.dir(string(app))); err != nil {
		return err
	}
	return s.Clean(ctx)
}

// Run removes what has expired until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	t := time.NewTicker(s.cfg.Interval)
	defer t.Stop()
	for {
		if err := s.Clean(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("removing old uploads failed; it is tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// Clean removes archives that have expired and what was left of uploads that broke off.
//
// It also ends charges for files that do not exist.
func (s *Service) Clean(ctx context.Context) error {
	rows, err := s.db.Read().Uploads(ctx, s.dirID)
	if err != nil {
		return err
	}
	var all error
	left, err := os.ReadDir(s.dir(spool))
	all = errors.Join(all, err)
	for _, f := range left {
		if !s.isActive(f.Name()) {
			all = errors.Join(all, durable.RemoveAll(s.dir(spool, f.Name())))
		}
	}
	charged := map[string]bool{}
	for _, row := range rows {
		name := strings.TrimPrefix(row.ID, s.dirID+"/")
		app, id, _ := strings.Cut(name, "/")
		charged[name] = true
		if s.isActive(id) || s.Has(api.AppID(app), id) == nil {
			continue
		}
		if err := durable.RemoveAll(s.path(api.AppID(app), id)); err != nil {
			all = errors.Join(all, err)
			continue
		}
		all = errors.Join(all, s.forget(ctx, row.ID))
	}
	return errors.Join(all, s.removeUncharged(charged))
}

// removeUncharged removes archives without a row, and directories without archives.
func (s *Service) removeUncharged(charged map[string]bool) error {
	files, all := filepath.Glob(s.dir("app*", "upl*"))
	for _, path := range files {
		app, id := filepath.Base(filepath.Dir(path)), filepath.Base(path)
		if !charged[app+"/"+id] && !s.isActive(id) {
			all = errors.Join(all, durable.RemoveAll(path))
		}
	}
	return all
}
