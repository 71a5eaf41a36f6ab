//go:build root

package nodebackup_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/nodebackup"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
)

const passphrase = "correct horse battery"

// lab is a data directory of a node, and an object store.
type lab struct {
	t       *testing.T
	dir     string // a file system that can clone files
	source  string
	objects blob.Store
	place   string // of the object store
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, dir: disktest.Dir(t, 1<<30), place: t.TempDir()}
	l.source = filepath.Join(l.dir, "first")
	var err error
	if l.objects, err = blob.Open(t.Context(), "file://"+l.place, blob.Options{}); err != nil {
		t.Fatal(err)
	}
	l.write("host.id", "hstabc\n")
	l.write("secret", strings.Repeat("s", 32))
	l.write("objects.key", strings.Repeat("0", 64))
	db, err := store.Open(t.Context(), store.Config{DSN: l.path("control.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // it is in use while backups are made
	l.write("machines/sbx1/machine.json", `{"version":1,"state":"hibernated","base":"snapshots/img1"}`)
	l.write("machines/sbx1/vm/pid", "1") // of a process of this host
	l.write("machines/sbx2/machine.json", `{"version":1,"state":"running","base":"templates/mini/g1"}`)
	l.write("machines/sbx2/disk.img", strings.Repeat("disk", 100_000))
	l.write("snapshots/img1/snapshot.json", `{}`)
	l.write("snapshots/img1/spent", "0")
	l.write("snapshots/img1/image/memory", strings.Repeat("memory", 1_000_000))
	l.write("templates/mini/g1/snapshot.json", `{}`)
	l.write("templates/mini/g1/disk.img", strings.Repeat("memory", 1_000_000)+"tail")
	l.write("volumes/vol1/volume.json", `{}`)
	l.write("volumes/vol1/volume.img", "repository")
	l.write("functions/code/ab/cd", "def handler(): pass")
	l.write("apps/files/ab", "bundle")
	l.write("apps/spool/upload", "excluded")
	l.write("ballast", "excluded")
	l.write("cache/package.deb", "excluded")
	l.write("run/lock", "excluded")
	if err := os.Symlink("ab", l.path("apps/files/link")); err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.Chmod(l.path("secret"), 0o600), os.Chown(l.path("machines/sbx2/disk.img"), 7, 8))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(l.path("volumes/vol1/volume.img"), 64<<20); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", l.path("machines/sbx2/socket"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	return l
}

func (l *lab) path(name string) string { return filepath.Join(l.source, name) }

func (l *lab) write(name, text string) {
	l.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(l.path(name)), 0o711),
		os.WriteFile(l.path(name), []byte(text), 0o640)); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) open() *nodebackup.Repository {
	l.t.Helper()
	r, err := nodebackup.Open(l.t.Context(), l.objects, nodebackup.Options{Passphrase: passphrase, Create: true})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = r.Close() })
	return r
}

func (l *lab) create(r *nodebackup.Repository) nodebackup.Backup {
	l.t.Helper()
	b, err := r.Create(l.t.Context(), nodebackup.Source{DataDir: l.source, Release: "1.2.3"})
	if err != nil {
		l.t.Fatal(err)
	}
	return b
}

// target returns an empty data directory.
func (l *lab) target(name string) string {
	l.t.Helper()
	dir := filepath.Join(l.dir, name)
	if err := os.MkdirAll(filepath.Join(dir, "run"), 0o755); err != nil {
		l.t.Fatal(err)
	}
	return dir
}

// files lists a tree with mode, owner and content; the database by its tables.
func (l *lab) files(dir string) map[string]string {
	l.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		text := fmt.Sprintf("%v %d:%d ", info.Mode(), st.Uid, st.Gid)
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += target
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += string(bytes.TrimRight(data, "\x00")) + fmt.Sprint(info.Size(), info.ModTime().UnixNano())
		}
		rel, err := filepath.Rel(dir, path)
		all[rel] = text
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return all
}

// wantRestored checks that a directory has what the source has and a backup contains.
func (l *lab) wantRestored(dir string) {
	l.t.Helper()
	got, want := l.files(dir), l.files(l.source)
	for name, text := range want {
		gone := strings.HasPrefix(name, "control.db") || name == "." || name == "ballast" ||
			strings.HasPrefix(name, "run") || strings.HasPrefix(name, "cache") ||
			strings.HasPrefix(name, "machines/sbx1/vm") ||
			strings.HasPrefix(name, "apps/spool") || name == "machines/sbx2/socket"
		if _, there := got[name]; gone && there && name != "." && name != "run" && name != "control.db" {
			l.t.Errorf("%s is in the backup", name)
		}
		if !gone && got[name] != text {
			l.t.Errorf("restored %s differs: %.60q, want %.60q", name, got[name], text)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			l.t.Errorf("restored %s is not in the source", name)
		}
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "control.db"))
	if err != nil {
		l.t.Fatal(err)
	}
	defer db.Close()
	var ok string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&ok); err != nil || ok != "ok" {
		l.t.Errorf("integrity of the database: %s, %v", ok, err)
	}
}

func TestRestore(t *testing.T) {
	l := newLab(t)
	r := l.open()
	first := l.create(r)
	second := l.create(r)
	if all, err := r.List(t.Context()); err != nil || len(all) != 2 || all[0] != first || all[1] != second {
		t.Errorf("List = %+v, %v; want %+v and %+v", all, err, first, second)
	}
	if first.Files < 10 || first.Release != "1.2.3" || first.Host != "hstabc" || first.Stored >= first.Bytes {
		t.Errorf("Create = %+v", first)
	}
	if b, err := r.Verify(t.Context(), "latest"); err != nil || b != second {
		t.Errorf("Verify = %+v, %v", b, err)
	}
	dir := l.target("second")
	if _, err := r.Restore(t.Context(), first.ID, nodebackup.Target{DataDir: dir}); err != nil {
		t.Fatal(err)
	}
	l.wantRestored(dir)
	if removed, err := r.Clean(t.Context(), "hstabc", 1); err != nil || len(removed) != 1 || removed[0] != first.ID {
		t.Errorf("Clean = %v, %v; want %s", removed, err, first.ID)
	}
	if _, err := r.Verify(t.Context(), second.ID); err != nil {
		t.Errorf("Verify after Clean: %v", err)
	}
	if err := r.Delete(t.Context(), first.ID); !errors.Is(err, nodebackup.ErrNotFound) {
		t.Errorf("Delete of a deleted backup: %v, want ErrNotFound", err)
	}
	data := filepath.Join(l.place, "w")
	err := filepath.WalkDir(data, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		for _, secret := range []string{strings.Repeat("s", 32), "def handler", passphrase} {
			if bytes.Contains(content, []byte(secret)) {
				t.Errorf("%s holds %q in the clear", path, secret)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	l := newLab(t)
	open := func(pass string) error {
		_, err := nodebackup.Open(t.Context(), l.objects, nodebackup.Options{Passphrase: pass})
		return err
	}
	if err := open(passphrase); !errors.Is(err, nodebackup.ErrNoRepository) {
		t.Errorf("Open of an empty place: %v, want ErrNoRepository", err)
	}
	r := l.open()
	b := l.create(r)
	if err := open("another passphrase"); !errors.Is(err, nodebackup.ErrPassphrase) {
		t.Errorf("Open with a wrong passphrase: %v, want ErrPassphrase", err)
	}
	if err := open("short"); err == nil || !strings.Contains(err.Error(), "use one of 12 or more") {
		t.Errorf("Open with a short passphrase: %v", err)
	}
	_, err := r.Restore(t.Context(), b.ID, nodebackup.Target{DataDir: l.source})
	if e, ok := errors.AsType[*nodebackup.NotEmptyError](err); !ok || e.Has == "" {
		t.Errorf("Restore over a node: %v, want NotEmptyError", err)
	}
	for _, id := range []nodebackup.ID{"20200101t000000zabcd", "../x", b.ID + "p0"} {
		if _, err := r.Verify(t.Context(), id); !errors.Is(err, nodebackup.ErrNotFound) {
			t.Errorf("Verify %q: %v, want ErrNotFound", id, err)
		}
	}
	if _, err := r.Create(t.Context(), nodebackup.Source{DataDir: t.TempDir()}); err == nil ||
		!strings.Contains(err.Error(), "holds no data of a node") {
		t.Errorf("Create of no node: %v", err)
	}
	db, err := sql.Open("sqlite", "file:"+l.path("control.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)"); err != nil {
		t.Fatal(err)
	}
	newer := l.create(r)
	_, err = r.Restore(t.Context(), newer.ID, nodebackup.Target{DataDir: l.target("second")})
	if !errors.Is(err, nodebackup.ErrNewer) || !strings.Contains(err.Error(), "schema 9999") {
		t.Errorf("Restore of a newer release: %v, want ErrNewer", err)
	}
}

// Every damaged or missing chunk is found by Verify, and no restore that meets one leaves anything.
func TestDamage(t *testing.T) {
	l := newLab(t)
	r := l.open()
	b := l.create(r)
	chunks, err := filepath.Glob(filepath.Join(l.place, "w", "*", "c", "*", "*"))
	if err != nil || len(chunks) == 0 {
		t.Fatalf("no chunks: %v", err)
	}
	for i, path := range chunks {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(data)
		bad[len(bad)/2] ^= 1
		if i%2 == 0 {
			bad = bad[:len(bad)-1]
		}
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Verify(t.Context(), b.ID); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("Verify with a damaged chunk: %v", err)
		}
		dir := l.target("second")
		if _, err := r.Restore(t.Context(), b.ID, nodebackup.Target{DataDir: dir}); err == nil ||
			!strings.Contains(err.Error(), "is damaged") {
			t.Errorf("Restore with a damaged chunk: %v", err)
		}
		if left := l.files(dir); len(left) != 2 { // itself and run
			t.Errorf("a failed restore leaves %d files", len(left))
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Verify(t.Context(), b.ID); err != nil {
		t.Errorf("Verify of the mended store: %v", err)
	}
}

// A failure or a kill after every step leaves no backup and no restored node, and the next attempt succeeds.
func TestFailureAndKillAfterEveryStep(t *testing.T) {
	l := newLab(t)
	r := l.open()
	var steps []string
	note := func(step string) error { steps = append(steps, step); return nil }
	if _, err := r.Create(t.Context(), nodebackup.Source{DataDir: l.source, OnStep: note}); err != nil {
		t.Fatal(err)
	}
	made := 1
	for _, step := range steps {
		for _, cause := range []error{errors.New("injected"), nodebackup.ErrAbandon} {
			_, err := r.Create(t.Context(), nodebackup.Source{DataDir: l.source, OnStep: failAt(step, cause)})
			if !errors.Is(err, cause) {
				t.Fatalf("%s: %v, want %v", step, err, cause)
			}
			if step == steps[len(steps)-1] {
				made++ // it is complete
			}
			if all, err := r.List(t.Context()); err != nil || len(all) != made {
				t.Errorf("%s: %d backups, %v; want %d", step, len(all), err, made)
			}
			_, err = os.Stat(l.path("run/backup"))
			if left := err == nil; left != errors.Is(cause, nodebackup.ErrAbandon) {
				t.Errorf("%s, %v: copies are left: %t", step, cause, left)
			}
			if err := nodebackup.Sweep(l.source); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(l.path("run/backup")); err == nil {
				t.Errorf("%s: Sweep leaves the copies", step)
			}
		}
	}
	steps = nil
	probe := l.target("probe")
	if _, err := r.Restore(t.Context(), "latest", nodebackup.Target{DataDir: probe, OnStep: note}); err != nil {
		t.Fatal(err)
	}
	for i, step := range steps {
		dir := l.target(fmt.Sprint("fail", i))
		fail := nodebackup.Target{DataDir: dir, OnStep: failAt(step, errors.New("injected"))}
		if _, err := r.Restore(t.Context(), "latest", fail); err == nil {
			t.Errorf("%s: a failure is ignored", step)
		}
		if left := l.files(dir); len(left) != 2 {
			t.Errorf("%s: a failed restore leaves %d files", step, len(left))
		}
		kill := nodebackup.Target{DataDir: dir, OnStep: failAt(step, nodebackup.ErrAbandon)}
		if _, err := r.Restore(t.Context(), "latest", kill); !errors.Is(err, nodebackup.ErrAbandon) {
			t.Errorf("%s: %v", step, err)
		}
		if _, ok := errors.AsType[*nodebackup.IncompleteError](nodebackup.CheckComplete(dir)); !ok {
			t.Errorf("%s: a killed restore passes for a complete one", step)
		}
		if _, err := r.Restore(t.Context(), "latest", nodebackup.Target{DataDir: dir}); err != nil {
			t.Errorf("%s: restore after a killed one: %v", step, err)
		}
		if err := nodebackup.CheckComplete(dir); err != nil {
			t.Error(err)
		}
		l.wantRestored(dir)
	}
}

func failAt(step string, cause error) func(string) error {
	return func(s string) error {
		if s == step {
			return cause
		}
		return nil
	}
}

// A machine that is woken while it is copied is in the backup as it is afterwards, never with an image that it used.
func TestMachineThatWakes(t *testing.T) {
	l := newLab(t)
	r := l.open()
	const woken = `{"version":1,"state":"running","base":"snapshots/img1"}`
	b, err := r.Create(t.Context(), nodebackup.Source{DataDir: l.source, OnCopy: func(path string) {
		if path == "snapshots/img1/snapshot.json" { // the record was copied, and the mark of the image was not
			l.write("snapshots/img1/spent", "1")
			l.write("machines/sbx1/machine.json", woken)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	dir := l.target("second")
	if _, err := r.Restore(t.Context(), b.ID, nodebackup.Target{DataDir: dir}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "machines/sbx1/machine.json")); err != nil || string(got) != woken {
		t.Errorf("machine = %s, %v; want %s", got, err, woken)
	}
	// A record that never follows keeps no backup from being made: recovery knows what to do.
	l.write("machines/sbx1/machine.json", `{"version":1,"state":"hibernated","base":"snapshots/img1"}`)
	l.create(r)
}
