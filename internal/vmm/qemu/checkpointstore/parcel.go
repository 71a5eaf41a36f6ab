package checkpointstore

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
)

// parcel is a process on its way to another host. Boot, inodes and times in Image mean nothing there.
type parcel struct {
	Format int               `json:"format"`
	Host   string            `json:"host"` // fingerprint of the host it was taken on
	Image  checkpoint.Image  `json:"image"`
	Sums   []string          `json:"sums"` // of the files of Image
	Set    int               `json:"set"`
	Sum    string            `json:"sum"`            // of the content that the monitor was made with
	Over   []checkpoint.Span `json:"over,omitempty"` // where what comes along, a checkpoint.Delta, lies over that
	Whole  bool              `json:"whole"`          // what comes along is that content itself
	Clock  time.Duration     `json:"clock"`          // of the monitor when it was packed, or later than it was taken
}

// parcelFormat names what a parcel means. Another is of no use.
const parcelFormat = 2

// Pack makes a parcel of the process in an image's directory; nil: there is none.
func (s *Store) Pack(imageDir string) (*vmm.Parcel, error) {
	p, err := s.Find(imageDir)
	if p == nil || err != nil {
		return nil, err
	}
	parcel, err := s.pack(p)
	if err != nil {
		return nil, fmt.Errorf("pack the process of an image: %w", err)
	}
	return parcel, nil
}

func (s *Store) pack(p *Process) (*vmm.Parcel, error) {
	out := parcel{Format: parcelFormat, Host: s.host, Image: p.Image, Set: p.Set, Whole: p.Base == nil}
	out.Image.Boot = ""
	now, err := clock()
	if err != nil {
		return nil, err
	}
	out.Clock = now + p.Ahead
	if out.Sums, err = s.sums.of(p.Image.Files); err != nil {
		return nil, err
	}
	if _, out.Sum, err = s.sums.file(p.content); err != nil {
		return nil, err
	}
	var content *os.File
	if out.Whole {
		content, err = os.Open(p.content)
	} else {
		content, out.Over, err = s.delta(p)
	}
	if err != nil {
		return nil, err
	}
	about, err := json.Marshal(out)
	if err == nil && len(about) > vmm.MaxParcelAbout {
		err = fmt.Errorf("its description has %d bytes", len(about))
	}
	if err != nil {
		return nil, errors.Join(err, content.Close())
	}
	return &vmm.Parcel{About: about, Content: content}, nil
}

// delta makes a file without a name of what a process holds besides its stored content.
func (s *Store) delta(p *Process) (_ *os.File, spans []checkpoint.Span, err error) {
	below, err := os.Open(p.content)
	if err != nil {
		return nil, nil, err
	}
	defer below.Close()
	over, err := os.Open(p.over)
	if err != nil {
		return nil, nil, err
	}
	defer over.Close()
	f, err := os.OpenFile(filepath.Dir(s.vehicle), os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	spans, err = checkpoint.NewDelta(&p.Image, p.Over, below).Write(w, over, p.Over)
	if err = errors.Join(err, w.Flush()); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, spans, nil
}

// parseParcel reads a description that came from elsewhere, and answers how large what comes along is.
func parseParcel(about []byte) (*parcel, int64, error) {
	if len(about) > vmm.MaxParcelAbout {
		return nil, 0, fmt.Errorf("a description of %d bytes", len(about))
	}
	var p parcel
	if err := json.Unmarshal(about, &p); err != nil {
		return nil, 0, err
	}
	if p.Format != parcelFormat {
		return nil, 0, fmt.Errorf("it is of format %d, want %d", p.Format, parcelFormat)
	}
	if err := p.Image.Check(); err != nil {
		return nil, 0, err
	}
	if len(p.Sums) != len(p.Image.Files) {
		return nil, 0, fmt.Errorf("%d sums of %d files", len(p.Sums), len(p.Image.Files))
	}
	for _, sum := range append(slices.Clone(p.Sums), p.Sum) {
		if len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "" {
			return nil, 0, fmt.Errorf("sum %q", sum)
		}
	}
	if p.Clock < 0 || p.Clock > maxClock {
		return nil, 0, fmt.Errorf("a clock at %v", p.Clock)
	}
	if p.Image.Bytes > maxContent {
		return nil, 0, fmt.Errorf("%d bytes of content, at most %d", p.Image.Bytes, int64(maxContent))
	}
	if p.Whole {
		return &p, p.Image.Bytes, nil
	}
	bytes, err := checkpoint.OverBytes(p.Over)
	return &p, bytes, err
}

// maxContent bounds the content of a process that comes from elsewhere: a monitor's translations are at most 256 MiB.
const maxContent = 1 << 30

// maxClock bounds how long a host has run, or seems to have.
const maxClock = 100 * 365 * 24 * time.Hour

// clock is how long this host has run.
func clock() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano()), err
}

// Unpack gives an image's directory the process of a parcel, as vmm.Carrier says.
func (s *Store) Unpack(ctx context.Context, imageDir string, from vmm.Delivery) error {
	if err := s.unpack(ctx, imageDir, from); err != nil {
		return fmt.Errorf("unpack the process of an image: %w", err)
	}
	return nil
}

func (s *Store) unpack(ctx context.Context, imageDir string, from vmm.Delivery) (err error) {
	in, bytes, err := parseParcel(from.About)
	if err != nil {
		return err
	}
	if in.Host != s.host {
		return &vmm.MismatchError{
			Field: "kernel and processor",
			Image: in.Host[:min(16, len(in.Host))],
			Host:  s.host[:16],
		}
	}
	near, err := s.near(from.Near) // it knows sums
	if err != nil {
		return err
	}
	p := Process{Format: processFormat, Image: in.Image, Set: in.Set, Sums: in.Sums, Sum: in.Sum, Over: in.Over}
	p.Image.Boot = s.boot
	if p.Ahead, err = s.ahead(ctx, in.Clock); err != nil {
		return err
	}
	if p.Image.Files, err = s.same(in.Image.Files, in.Sums); err != nil {
		return err
	}
	dir := filepath.Join(imageDir, processDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) { // it was done before
			return nil
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if !in.Whole {
		if p.Base, err = s.content(ctx, in.Sum, in.Image.Bytes, near, from); err != nil {
			return err
		}
	}
	own := filepath.Join(dir, contentName)
	if err := p.bring(ctx, own, bytes, from); err != nil {
		return err
	}
	if in.Whole {
		if _, sum, err := s.sums.file(own); err != nil || sum != in.Sum {
			return errors.Join(err, fmt.Errorf("the content that came has the sum %s, want %s", sum, in.Sum))
		}
	}
	return p.write(dir)
}

// same answers the files of this host that are what those of another host are, by path and content.
func (s *Store) same(files []checkpoint.File, want []string) ([]checkpoint.File, error) {
	out := make([]checkpoint.File, len(files))
	for i, f := range files {
		if !filepath.IsAbs(f.Path) || filepath.Clean(f.Path) != f.Path {
			return nil, fmt.Errorf("file %q", f.Path)
		}
		is, sum, err := s.sums.file(f.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &vmm.MismatchError{Field: f.Path, Image: want[i][:16], Host: "no such file"}
		}
		if err != nil {
			return nil, err
		}
		if sum != want[i] {
			return nil, &vmm.MismatchError{Field: f.Path, Image: want[i][:16], Host: sum[:16]}
		}
		out[i] = is
	}
	return out, nil
}

// ahead is how much longer this host must seem to have run for a monitor whose clock stood at then.
func (s *Store) ahead(ctx context.Context, then time.Duration) (time.Duration, error) {
	now, err := clock()
	if err != nil || then <= now {
		return 0, err
	}
	if err := s.clocks(ctx); err != nil {
		return 0, &vmm.MismatchError{
			Field: "clock",
			Image: then.String(),
			Host:  now.String() + ", and it cannot be set: " + err.Error(),
		}
	}
	return then - now, nil
}

// clocks finds out, by a process that only waits, whether processes here can have another clock than this one.
func (s *Store) clocks(ctx context.Context) error {
	p, err := proc.Start(proc.Command{Path: s.vehicle, Fork: proc.ForkAhead(time.Second)})
	if err != nil {
		return err
	}
	here, err := os.Readlink("/proc/self/ns/time")
	there, failed := os.Readlink(fmt.Sprintf("/proc/%d/ns/time", p.PID()))
	if err == nil && failed == nil && here == there {
		err = errors.New("a program that is run enters no namespace of clocks")
	}
	return errors.Join(err, failed, p.Kill(ctx), p.Release())
}

// bring writes what comes with a parcel as a new file.
func (p *Process) bring(ctx context.Context, path string, bytes int64, from vmm.Delivery) error {
	if p.Base == nil {
		return receive(path, bytes, func(f *os.File) (int64, error) { return from.Bring(ctx, false, f) })
	}
	below, err := os.Open(p.Base.Path)
	if err != nil {
		return err
	}
	defer below.Close()
	d := checkpoint.NewDelta(&p.Image, p.Over, below)
	return receive(path, bytes, func(f *os.File) (int64, error) { return from.Bring(ctx, false, d.Back(f)) })
}

// receive makes a new file of that many bytes, which bring writes and nobody else. After an error the file may be there.
func receive(path string, bytes int64, bring func(*os.File) (int64, error)) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	came, err := bring(f)
	if err != nil {
		return err
	}
	if came != bytes {
		return fmt.Errorf("%d bytes of content came, want %d", came, bytes)
	}
	return f.Truncate(bytes) // zeros at its end were not written
}

// near answers the process of an image of this host; nil: there is none.
func (s *Store) near(dir string) (*Process, error) {
	if dir == "" {
		return nil, nil
	}
	return s.Find(dir)
}
