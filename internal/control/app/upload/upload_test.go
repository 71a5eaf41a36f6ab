package upload_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/upload"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

var (
	alice = auth.Principal{Workspace: "a"}
	app   = api.App{ID: api.NewAppID()}
)

type fixture struct {
	*upload.Service
	t   *testing.T
	dir string
	db  *store.DB
	cfg upload.Config
}

func newFixture(t *testing.T, quotaMiB int64) *fixture {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{t: t, dir: t.TempDir(), db: db}
	f.cfg = upload.Config{Dir: f.dir, MaxBytes: 8 << 20}
	f.open(quotaMiB)
	return f
}

// open makes a service as the next process would.
func (f *fixture) open(quotaMiB int64) {
	f.t.Helper()
	quotas := quota.New(quota.Config{Defaults: map[quota.Kind]int64{quota.Uploads: quotaMiB}}, f.db)
	s, err := upload.New(f.cfg, f.db, quotas, slog.New(slog.DiscardHandler))
	if err != nil {
		f.t.Fatal(err)
	}
	f.Service = s
}

// empty fails unless no file and no charge is left.
func (f *fixture) empty() {
	f.t.Helper()
	if charged := f.charged(); charged != 0 {
		f.t.Errorf("%d bytes are charged, want none", charged)
	}
	err := filepath.WalkDir(f.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && e.Name() != "id" {
			f.t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		f.t.Error(err)
	}
}

func (f *fixture) charged() int64 {
	f.t.Helper()
	n, err := f.db.Read().UploadBytes(f.t.Context(), "a")
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

func archive(t *testing.T, size int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "index.html", Mode: 0o644, Size: int64(size)}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUploadKeepsArchiveAsItCame(t *testing.T) {
	f := newFixture(t, 0)
	plain := archive(t, 3<<20)
	var gz bytes.Buffer
	z := gzip.NewWriter(&gz)
	_, _ = z.Write(plain)
	_ = z.Close()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for format, data := range map[string][]byte{
		upload.Tar: plain, upload.TarGzip: gz.Bytes(), upload.TarZstd: enc.EncodeAll(plain, nil),
	} {
		up, err := f.Upload(t.Context(), alice, app, bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		if up.Format != format || up.Bytes != int64(len(data)) || !up.ExpiresAt.After(time.Now()) {
			t.Errorf("%s: got %+v", format, up)
		}
		f.open(0) // another process finds it
		has, r, err := f.Open(t.Context(), app.ID, up.ID)
		if err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data) || has.Format != format || has.Bytes != up.Bytes {
			t.Errorf("%s: read %d bytes, %+v, %v", format, len(got), has, err)
		}
		_ = r.Close()
	}
	if f.charged() < int64(len(plain)) {
		t.Errorf("%d bytes are charged, want at least %d", f.charged(), len(plain))
	}
	if err := f.Forget(t.Context(), app.ID); err != nil {
		t.Fatal(err)
	}
	f.empty()
}

func TestUploadBelongsToItsApp(t *testing.T) {
	f := newFixture(t, 0)
	up, err := f.Upload(t.Context(), alice, app, bytes.NewReader(archive(t, 10)))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		app api.AppID
		id  string
	}{
		"another app":    {api.NewAppID(), up.ID},
		"another upload": {app.ID, api.NewUploadID()},
		"a path":         {app.ID, "../" + string(app.ID) + "/" + up.ID},
		"an app's path":  {"app/..", up.ID},
		"nothing":        {app.ID, ""},
	} {
		if _, _, err := f.Open(t.Context(), c.app, c.id); api.CodeOf(err) != api.NotFound {
			t.Errorf("%s: %v, want not_found", name, err)
		}
	}
}

func TestUploadRefused(t *testing.T) {
	broken := errors.New("the connection broke")
	for name, c := range map[string]struct {
		quota int64
		body  io.Reader
		code  api.Code
		text  string
	}{
		"too large":   {0, bytes.NewReader(archive(t, 8<<20)), api.TooLarge, "larger than 8 MiB"},
		"over quota":  {2, bytes.NewReader(archive(t, 3<<20)), api.QuotaExceeded, "upload"},
		"interrupted": {0, io.MultiReader(bytes.NewReader(archive(t, 1<<20)), failing{broken}), api.Invalid, "broke"},
		"no body":     {0, strings.NewReader(""), api.Invalid, "empty"},
		"no files":    {0, bytes.NewReader(make([]byte, 1024)), api.Invalid, "no files"},
		"a page":      {0, strings.NewReader(strings.Repeat("<html>", 200)), api.Invalid, "not a tar archive"},
		"short":       {0, strings.NewReader("ustar"), api.Invalid, "not a tar archive"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, c.quota)
			_, err := f.Upload(t.Context(), alice, app, c.body)
			if api.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want %s with %q", err, c.code, c.text)
			}
			f.empty()
		})
	}
}

func TestUploadEndsWithItsRequest(t *testing.T) {
	f := newFixture(t, 0)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client is gone")
	_, err := f.Upload(ctx, alice, app, io.MultiReader(bytes.NewReader(archive(t, 1<<20)), canceling{cancel, gone}))
	if err == nil {
		t.Error("the upload was kept")
	}
	f.empty()
}

func TestUploadExpires(t *testing.T) {
	f := newFixture(t, 0)
	up, err := f.Upload(t.Context(), alice, app, bytes.NewReader(archive(t, 10)))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.Has(app.ID, up.ID); err != nil {
		t.Fatalf("a new upload was removed: %v", err)
	}
	path := filepath.Join(f.dir, string(app.ID), up.ID)
	old := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Open(t.Context(), app.ID, up.ID); api.CodeOf(err) != api.NotFound {
		t.Errorf("an old upload can be opened: %v", err)
	}
	if err := f.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.empty()
}

// TestCleanAfterKill: whatever step of an upload the process was killed after, the next one leaves nothing of it.
func TestCleanAfterKill(t *testing.T) {
	for _, left := range []string{"spool", "charge", "file"} {
		t.Run(left, func(t *testing.T) {
			f := newFixture(t, 0)
			id := api.NewUploadID()
			up, err := f.Upload(t.Context(), alice, app, bytes.NewReader(archive(t, 10)))
			if err != nil {
				t.Fatal(err)
			}
			done := filepath.Join(f.dir, string(app.ID), up.ID)
			switch left {
			case "spool":
				err = os.Rename(done, filepath.Join(f.dir, "spool", up.ID))
			case "charge":
				err = os.Remove(done)
			case "file":
				err = os.Rename(done, filepath.Join(f.dir, string(app.ID), id))
			}
			if err != nil {
				t.Fatal(err)
			}
			f.open(0)
			if err := f.Clean(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.empty()
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// canceling ends the context of its reader, and then has more.
type canceling struct {
	cancel context.CancelCauseFunc
	why    error
}

func (c canceling) Read(p []byte) (int, error) {
	c.cancel(c.why)
	return len(p), nil
}
