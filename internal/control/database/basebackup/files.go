package basebackup

import (
	"archive/tar"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/manifest"
	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// Files is a data directory that was copied between pg_backup_start and pg_backup_stop.
type Files struct {
	FS    fs.FS
	Label []byte  // the text of backup_label, a result of pg_backup_stop
	Stop  wal.LSN // the position that is a result of pg_backup_stop
}

// Store stores a base backup from files.
func Store(ctx context.Context, files Files, a *archive.Archive, opt Options) (archive.Base, error) {
	opt.fill()
	start, timeline, err := parseLabel(files.Label)
	if err != nil {
		return archive.Base{}, err
	}
	system, err := systemOf(files.FS)
	if err != nil {
		return archive.Base{}, err
	}
	t := &transfer{a: a, opt: opt}
	t.base = archive.Base{
		System: system, Stop: files.Stop, Started: opt.Now().UTC(), Variant: opt.Variant, Collation: opt.Collation,
	}
	if err := t.begin(ctx, start, timeline); err != nil {
		return archive.Base{}, err
	}
	return t.commit(ctx, files.write(ctx, t), func(found *manifest.Manifest, names []string) ([]byte, error) {
		found.Ranges = []manifest.Range{{Timeline: timeline, Start: start, End: files.Stop}}
		return found.Format(names, opt.Now())
	})
}

// parseLabel finds the start of a backup in backup_label.
func parseLabel(label []byte) (start wal.LSN, t wal.Timeline, err error) {
	for line := range strings.Lines(string(label)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "START WAL LOCATION":
			at, _, _ := strings.Cut(value, " ")
			if start, err = wal.ParseLSN(at); err != nil {
				return 0, 0, fmt.Errorf("backup_label: %w", err)
			}
		case "START TIMELINE":
			n, err := strconv.ParseUint(value, 10, 32)
			if err != nil {
				return 0, 0, fmt.Errorf("backup_label: %w", err)
			}
			t = wal.Timeline(n)
		}
	}
	if start == 0 || t == 0 {
		return 0, 0, errors.New("backup_label names no start and timeline; pass the text that pg_backup_stop returned")
	}
	return start, t, nil
}

// systemOf returns the identifier of a cluster, which pg_control begins with.
func systemOf(files fs.FS) (uint64, error) {
	f, err := files.Open("global/pg_control")
	if err != nil {
		return 0, err
	}
	var id [8]byte
	_, err = io.ReadFull(f, id[:])
	if err := errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("global/pg_control: %w", err)
	}
	return binary.LittleEndian.Uint64(id[:]), nil
}

// emptied are directories whose content a backup leaves out: the server fills them when it starts.
var emptied = map[string]bool{
	"pg_wal": true, "pg_replslot": true, "pg_dynshmem": true, "pg_notify": true, "pg_serial": true,
	"pg_snapshots": true, "pg_stat_tmp": true, "pg_subtrans": true,
}

// omitted are files that a backup leaves out, whatever their directory.
var omitted = map[string]bool{
	"postmaster.pid": true, "postmaster.opts": true, "backup_label": true, "backup_label.old": true,
	"tablespace_map": true, "tablespace_map.old": true, "backup_manifest": true, "pg_internal.init": true,
	"postgresql.auto.conf.tmp": true, "current_logfiles.tmp": true, "recovery.signal": true, "standby.signal": true,
	"lost+found": true,
}

// write writes the tar archive.
func (files Files) write(ctx context.Context, w io.Writer) error {
	out := tar.NewWriter(w)
	err := add(out, "backup_label", int64(len(files.Label)), strings.NewReader(string(files.Label)))
	if err != nil {
		return err
	}
	err = fs.WalkDir(files.FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		base, parent := path.Base(name), path.Dir(name)
		switch {
		case omitted[base], strings.HasPrefix(base, "pgsql_tmp"):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case parent == "pg_tblspc":
			return replication.ErrTablespaces
		case d.IsDir():
			return files.directory(out, name)
		}
		return files.file(out, name, d)
	})
	if err != nil {
		return err
	}
	return out.Close()
}

func (files Files) directory(out *tar.Writer, name string) error {
	if name == "." {
		return nil
	}
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700}); err != nil {
		return err
	}
	if !emptied[name] {
		return nil
	}
	if name == "pg_wal" {
		err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "pg_wal/archive_status/", Mode: 0o700})
		if err != nil {
			return err
		}
	}
	return fs.SkipDir
}

func (files Files) file(out *tar.Writer, name string, d fs.DirEntry) error {
	if !d.Type().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a directory", name)
	}
	f, err := files.FS.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return add(out, name, info.Size(), f)
}

func add(out *tar.Writer, name string, size int64, r io.Reader) error {
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600}); err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(r, size))
	if err == nil && n < size {
		err = fmt.Errorf("%s became shorter", name)
	}
	return err
}
