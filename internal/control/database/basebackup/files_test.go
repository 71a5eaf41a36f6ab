package basebackup_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/basebackup"
	"github.com/pandastack/pandastack/internal/control/database/manifest"
	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

var label = []byte("START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\n" +
	"CHECKPOINT LOCATION: 0/2000060\nBACKUP METHOD: streamed\nSTART TIMELINE: 1\n")

// dataDirectory is a data directory with files that a backup has, and some that it leaves out.
func dataDirectory() fstest.MapFS {
	control := binary.LittleEndian.AppendUint64(nil, 4711)
	files := fstest.MapFS{
		"global/pg_control": {Data: append(control, make([]byte, 8184)...)},
		"pg_wal":            {Mode: fs.ModeDir | 0o700}, "pg_tblspc": {Mode: fs.ModeDir | 0o700},
	}
	for _, name := range []string{
		"PG_VERSION", "base/1/1259", "postgresql.auto.conf", // kept
		"postmaster.pid", "pg_wal/000000010000000000000002", "base/1/pg_internal.init", "base/pgsql_tmp/pgsql_tmp1.1",
		"pg_replslot/relay/state", "standby.signal", "backup_label", "lost+found/x",
	} {
		files[name] = &fstest.MapFile{Data: []byte(name)}
	}
	return files
}

func newArchive(t *testing.T, store *blobtest.Faulty) *archive.Archive {
	t.Helper()
	ring, err := keyring.New(bytes.Repeat([]byte{1}, keyring.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	a, err := archive.New(store, ring, "db1", archive.Options{Retry: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A backup of files has what a server sends, can be verified, and waits for its log.
func TestStore(t *testing.T) {
	a := newArchive(t, blobtest.NewFaulty(blobtest.NewMemory(), nil))
	var waited wal.LSN
	opt := basebackup.Options{
		Variant: "npm-16", Collation: "C",
		Archived: func(_ context.Context, _ wal.Timeline, at wal.LSN) error { waited = at; return nil },
	}
	files := basebackup.Files{FS: dataDirectory(), Label: label, Stop: 0x2000100}
	b, err := basebackup.Store(t.Context(), files, a, opt)
	if err != nil {
		t.Fatal(err)
	}
	if b.System != 4711 || b.Start != 0x2000028 || b.Stop != 0x2000100 || b.Timeline != 1 || b.Variant != "npm-16" {
		t.Errorf("base %+v", b)
	}
	if waited != b.Stop {
		t.Errorf("waited for the log up to %v, want %v", waited, b.Stop)
	}
	text, err := a.ReadManifest(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for check := m.Check(a.OpenBase(t.Context(), b)); ; {
		h, err := check.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			names = append(names, h.Name)
		}
	}
	want := []string{"PG_VERSION", "backup_label", "base/1/1259", "global/pg_control", "postgresql.auto.conf"}
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("files %v, want %v", names, want)
	}
}

// A backup that fails for any reason is not listed, and leaves nothing.
func TestFailures(t *testing.T) {
	injected := errors.New("injected")
	tablespace := dataDirectory()
	tablespace["pg_tblspc/16384"] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("/elsewhere")}
	noControl := dataDirectory()
	delete(noControl, "global/pg_control")
	device := dataDirectory()
	device["base/device"] = &fstest.MapFile{Mode: fs.ModeDevice}
	wait := func(context.Context, wal.Timeline, wal.LSN) error { return injected }
	for _, one := range []struct {
		name  string
		files basebackup.Files
		opt   basebackup.Options
		fail  string // part of the keys whose put fails
		want  error
	}{
		{"log", basebackup.Files{FS: dataDirectory(), Label: label, Stop: 0x2000100},
			basebackup.Options{Archived: wait}, "", injected},
		{"part", basebackup.Files{FS: dataDirectory(), Label: label, Stop: 0x2000100}, basebackup.Options{}, "/tar/",
			injected},
		{"manifest", basebackup.Files{FS: dataDirectory(), Label: label, Stop: 0x2000100}, basebackup.Options{},
			"/manifest", injected},
		{"description", basebackup.Files{FS: dataDirectory(), Label: label, Stop: 0x2000100}, basebackup.Options{},
			"/meta", injected},
		{"tablespace", basebackup.Files{FS: tablespace, Label: label, Stop: 0x2000100}, basebackup.Options{}, "",
			replication.ErrTablespaces},
		{"no-control-file", basebackup.Files{FS: noControl, Label: label, Stop: 0x2000100}, basebackup.Options{}, "",
			fs.ErrNotExist},
		{"device", basebackup.Files{FS: device, Label: label, Stop: 0x2000100}, basebackup.Options{}, "", nil},
		{"no-label", basebackup.Files{FS: dataDirectory(), Stop: 0x2000100}, basebackup.Options{}, "", nil},
		{"bad-label", basebackup.Files{FS: dataDirectory(), Label: []byte("START WAL LOCATION: x\n"), Stop: 1},
			basebackup.Options{}, "", nil},
		{"stop-before-start", basebackup.Files{FS: dataDirectory(), Label: label, Stop: 1},
			basebackup.Options{}, "", nil},
	} {
		t.Run(one.name, func(t *testing.T) {
			memory := blobtest.NewMemory()
			a := newArchive(t, blobtest.NewFaulty(memory, func(c blobtest.Call) blobtest.Fault {
				if c.Op == "put" && one.fail != "" && strings.Contains(c.Key, one.fail) {
					return blobtest.Fault{Err: injected}
				}
				return blobtest.Fault{}
			}))
			_, err := basebackup.Store(t.Context(), one.files, a, one.opt)
			if err == nil || one.want != nil && !errors.Is(err, one.want) {
				t.Errorf("Store = %v, want %v", err, one.want)
			}
			if keys := blobtest.Keys(t, memory, ""); len(keys) != 0 {
				t.Errorf("it left %v", keys)
			}
		})
	}
}

// A call that is given up ends, and leaves nothing.
func TestCancel(t *testing.T) {
	memory := blobtest.NewMemory()
	ctx, cancel := context.WithCancel(t.Context())
	a := newArchive(t, blobtest.NewFaulty(memory, nil))
	files := basebackup.Files{FS: dataDirectory(), Label: label, Stop: 0x2000100}
	_, err := basebackup.Store(ctx, files, a, basebackup.Options{
		Archived: func(ctx context.Context, _ wal.Timeline, _ wal.LSN) error { cancel(); return context.Cause(ctx) },
	})
	if !errors.Is(err, context.Canceled) || len(blobtest.Keys(t, memory, "")) != 0 {
		t.Errorf("Store = %v, left %v", err, blobtest.Keys(t, memory, ""))
	}
}
