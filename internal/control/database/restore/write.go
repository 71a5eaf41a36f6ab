package restore

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/manifest"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

const (
	settingsFile = "postgresql.auto.conf"
	maxSettings  = 1 << 20
)

// Sink takes the files of a data directory. Names are relative, with slashes, and stay below the directory; a directory
// comes before what is in it.
type Sink interface {
	Directory(name string) error
	File(name string, size int64, content io.Reader) error
}

// Options of Write.
type Options struct {
	// Settings are added to postgresql.auto.conf; they win over what the base has there.
	Settings []Setting
	// Reset are names of settings that are removed from it.
	Reset []string
}

// Setting is a setting of the server.
type Setting struct{ Name, Value string }

// alwaysReset are settings that belong to the server that was backed up, or to its last recovery.
var alwaysReset = []string{"synchronous_standby_names", "primary_conninfo", "primary_slot_name"}

// Write writes the data directory. If it fails, what was written is not a data directory: remove it.
func (p *Plan) Write(ctx context.Context, sink Sink, opt Options) error {
	for _, s := range opt.Settings {
		if !isSettingName(s.Name) || strings.ContainsAny(s.Value, "\n\r\x00") {
			return fmt.Errorf("restore: invalid setting %.80q", s.Name)
		}
	}
	text, err := p.a.ReadManifest(ctx, p.Base)
	if err != nil {
		return err
	}
	m, err := manifest.Parse(text)
	if err != nil {
		return fmt.Errorf("base %s: %w", p.Base.ID, err)
	}
	settings, err := p.writeBase(ctx, sink, m)
	if err != nil {
		return fmt.Errorf("base %s: %w", p.Base.ID, err)
	}
	if err := p.writeLog(ctx, sink); err != nil {
		return err
	}
	for _, one := range []struct {
		name string
		text []byte
	}{{settingsFile, p.settings(settings, opt)}, {"recovery.signal", nil}} {
		if err := sink.File(one.name, int64(len(one.text)), bytes.NewReader(one.text)); err != nil {
			return err
		}
	}
	return nil
}

// writeBase writes the files of the base and returns the text of its settings.
func (p *Plan) writeBase(ctx context.Context, sink Sink, m *manifest.Manifest) (settings []byte, err error) {
	check := m.Check(p.a.OpenBase(ctx, p.Base))
	for {
		h, err := check.Next()
		if err == io.EOF {
			return settings, nil
		}
		switch {
		case err != nil:
		case h.Name == ".", strings.HasPrefix(h.Name, "pg_wal/") && h.Typeflag == tar.TypeReg:
		case h.Typeflag == tar.TypeDir:
			err = sink.Directory(h.Name)
		case h.Name == settingsFile && h.Size <= maxSettings:
			settings, err = io.ReadAll(check)
		case h.Name == "recovery.signal", h.Name == "standby.signal", h.Name == settingsFile:
		default:
			err = sink.File(h.Name, h.Size, check)
		}
		if err != nil {
			return nil, err
		}
	}
}

// writeLog writes the segments and the histories. All histories are written, so that the server chooses a number for
// its new timeline that the archive does not have.
func (p *Plan) writeLog(ctx context.Context, sink Sink) error {
	for _, t := range p.histories {
		data, err := p.a.History(ctx, t)
		if err != nil {
			return err
		}
		if err := sink.File("pg_wal/"+wal.HistoryFile(t), int64(len(data)), bytes.NewReader(data)); err != nil {
			return err
		}
	}
	return writeSegments(ctx, p.a, p.entries, p.End, sink)
}

// writeSegments writes segments of the log up to its end.
func writeSegments(ctx context.Context, a *archive.Archive, entries []archive.Entry, end wal.LSN, sink Sink) error {
	return fetch(ctx, a, entries, func(e archive.Entry, data []byte, _ archive.Coverage) error {
		// A longer object may have replaced the last one. It has transactions that the caller does not know.
		if room := int(max(end, e.Segment.Start()) - e.Segment.Start()); len(data) > room {
			data = data[:room]
		}
		content := io.MultiReader(bytes.NewReader(data), io.LimitReader(zeros{}, int64(wal.SegmentBytes-len(data))))
		return sink.File("pg_wal/"+e.Segment.String(), wal.SegmentBytes, content)
	})
}

// zeros is an endless reader of zero bytes.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// settings returns the text of postgresql.auto.conf: that of the base, without what does not apply, and the recovery.
func (p *Plan) settings(before []byte, opt Options) []byte {
	own := []Setting{
		{"restore_command", "false"}, // all that is needed is in pg_wal
		{"recovery_target_timeline", fmt.Sprint(uint32(p.path.Last()))},
		{"recovery_target_action", "promote"},
	}
	if p.Stop != 0 {
		own = append(own, Setting{"recovery_target_lsn", p.Stop.String()}, Setting{"recovery_target_inclusive", "off"})
	}
	own = append(own, opt.Settings...)
	drop := map[string]bool{}
	for _, name := range append(append([]string{}, alwaysReset...), opt.Reset...) {
		drop[strings.ToLower(name)] = true
	}
	for _, s := range own {
		drop[strings.ToLower(s.Name)] = true
	}
	var out bytes.Buffer
	for line := range strings.Lines(string(before)) {
		name := strings.ToLower(strings.TrimSpace(line[:nameEnd(line)]))
		if drop[name] || strings.HasPrefix(name, "recovery_target") {
			continue
		}
		out.WriteString(strings.TrimRight(line, "\n") + "\n")
	}
	for _, s := range own {
		fmt.Fprintf(&out, "%s = '%s'\n", s.Name, strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(s.Value))
	}
	return out.Bytes()
}

// nameEnd returns the end of the name in a line of settings.
func nameEnd(line string) int {
	trimmed := strings.TrimLeft(line, " \t")
	lead := len(line) - len(trimmed)
	if i := strings.IndexAny(trimmed, " \t='\n"); i >= 0 {
		return lead + i
	}
	return len(line)
}

func isSettingName(name string) bool {
	return name != "" && len(name) < 128 &&
		strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789_.") == ""
}

// TarSink writes a tar archive. The caller closes its writer after Write.
type TarSink struct{ W *tar.Writer }

// Directory implements Sink.
func (s TarSink) Directory(name string) error {
	return s.W.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700})
}

// File implements Sink.
func (s TarSink) File(name string, size int64, content io.Reader) error {
	if err := s.W.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600}); err != nil {
		return err
	}
	_, err := io.Copy(s.W, content)
	return err
}

// DirSink writes into a directory, which must be empty. Sync makes everything durable.
type DirSink struct{ Root *os.Root }

// Directory implements Sink.
func (s DirSink) Directory(name string) error {
	if err := s.Root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// File implements Sink.
func (s DirSink) File(name string, size int64, content io.Reader) error {
	f, err := s.Root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, content)
	if err == nil && n != size {
		err = fmt.Errorf("%s has %d bytes, want %d", name, n, size)
	}
	return errors.Join(err, f.Close())
}

// Sync makes the files durable.
func (s DirSink) Sync() error {
	d, err := s.Root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
