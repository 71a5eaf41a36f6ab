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

// bundle is the description of a checkpoint in transfer. The boot ID, inodes and times in Process
// are meaningless on another host.
type bundle struct {
	Format      int                   `json:"format"`
	Fingerprint string                `json:"host"` // of the host of the dump
	Process     checkpoint.Checkpoint `json:"image"`
	FileHashes  []string              `json:"sums"` // of Process.Files
	FDSet       int                   `json:"set"`
	ContentHash string                `json:"sum"`            // of the pages file that the monitor was restored with
	Delta       []checkpoint.Span     `json:"over,omitempty"` // spans of the content, an XORDelta to that pages file
	Full        bool                  `json:"whole"`          // the content is that pages file itself
	// Clock is the monitor's clock since boot at the export, which is after the dump.
	Clock time.Duration `json:"clock"`
}

// bundleFormat is the version of the bundle format. Other versions are refused.
const bundleFormat = 2

// Export returns the checkpoint of an image as a bundle, or nil if the image has none.
func (s *Store) Export(imageDir string) (*vmm.Checkpoint, error) {
	p, err := s.Find(imageDir)
	if p == nil || err != nil {
		return nil, err
	}
	exported, err := s.export(p)
	if err != nil {
		return nil, fmt.Errorf("export monitor checkpoint: %w", err)
	}
	return exported, nil
}

func (s *Store) export(p *MonitorCheckpoint) (*vmm.Checkpoint, error) {
	out := bundle{Format: bundleFormat, Fingerprint: s.host, Process: p.Process, FDSet: p.FDSet, Full: p.Base == nil}
	out.Process.Boot = ""
	now, err := hostUptime()
	if err != nil {
		return nil, err
	}
	out.Clock = now + p.ClockOffset
	if out.FileHashes, err = s.hashes.ofFiles(p.Process.Files); err != nil {
		return nil, err
	}
	if _, out.ContentHash, err = s.hashes.ofFile(p.contentPath); err != nil {
		return nil, err
	}
	var content *os.File
	if out.Full {
		content, err = os.Open(p.contentPath)
	} else {
		content, out.Delta, err = s.encodeDelta(p)
	}
	if err != nil {
		return nil, err
	}
	description, err := json.Marshal(out)
	if err == nil && len(description) > vmm.MaxCheckpointDescription {
		err = fmt.Errorf(
			"the description has %d bytes, want at most %d",
			len(description),
			vmm.MaxCheckpointDescription,
		)
	}
	if err != nil {
		return nil, errors.Join(err, content.Close())
	}
	return &vmm.Checkpoint{Description: description, Content: content}, nil
}

// encodeDelta writes the checkpoint's XORDelta to an unnamed file.
func (s *Store) encodeDelta(p *MonitorCheckpoint) (_ *os.File, spans []checkpoint.Span, err error) {
	base, err := os.Open(p.contentPath)
	if err != nil {
		return nil, nil, err
	}
	defer base.Close()
	delta, err := os.Open(p.deltaPath)
	if err != nil {
		return nil, nil, err
	}
	defer delta.Close()
	f, err := os.OpenFile(filepath.Dir(s.stub), os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	spans, err = checkpoint.NewXORDelta(&p.Process, p.Delta, base).Encode(w, delta, p.Delta)
	if err = errors.Join(err, w.Flush()); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, spans, nil
}

// parseBundle decodes and validates a description from another host. It also returns the size of
// the content.
func parseBundle(description []byte) (*bundle, int64, error) {
	if len(description) > vmm.MaxCheckpointDescription {
		return nil, 0, fmt.Errorf("the description has %d bytes", len(description))
	}
	var p bundle
	if err := json.Unmarshal(description, &p); err != nil {
		return nil, 0, err
	}
	if p.Format != bundleFormat {
		return nil, 0, fmt.Errorf("it has format %d, want %d", p.Format, bundleFormat)
	}
	if err := p.Process.Validate(); err != nil {
		return nil, 0, err
	}
	if len(p.FileHashes) != len(p.Process.Files) {
		return nil, 0, fmt.Errorf("%d hashes for %d files", len(p.FileHashes), len(p.Process.Files))
	}
	for _, hash := range append(slices.Clone(p.FileHashes), p.ContentHash) {
		if len(hash) != 64 || strings.Trim(hash, "0123456789abcdef") != "" {
			return nil, 0, fmt.Errorf("invalid hash %q", hash)
		}
	}
	if p.Clock < 0 || p.Clock > maxClock {
		return nil, 0, fmt.Errorf("clock %v is out of range", p.Clock)
	}
	if p.Process.Bytes > maxContent {
		return nil, 0, fmt.Errorf("%d bytes of pages, at most %d are allowed", p.Process.Bytes, int64(maxContent))
	}
	if p.Full {
		return &p, p.Process.Bytes, nil
	}
	bytes, err := checkpoint.DeltaBytes(p.Delta)
	return &p, bytes, err
}

// maxContent bounds the content of a checkpoint from another host. QEMU's translation cache has at
// most 256 MiB.
const maxContent = 1 << 30

// maxClock bounds the clock since boot.
const maxClock = 100 * 365 * 24 * time.Hour

// hostUptime returns the time on this host's clock since boot.
func hostUptime() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano()), err
}

// Import adds the checkpoint of a bundle to an image, as vmm.CheckpointExporter specifies.
func (s *Store) Import(ctx context.Context, imageDir string, from vmm.CheckpointSource) error {
	if err := s.importBundle(ctx, imageDir, from); err != nil {
		return fmt.Errorf("import monitor checkpoint: %w", err)
	}
	return nil
}

func (s *Store) importBundle(ctx context.Context, imageDir string, from vmm.CheckpointSource) (err error) {
	in, bytes, err := parseBundle(from.Description)
	if err != nil {
		return err
	}
	if in.Fingerprint != s.host {
		return &vmm.MismatchError{
			Field: "kernel and processor",
			Image: in.Fingerprint[:min(16, len(in.Fingerprint))],
			Host:  s.host[:16],
		}
	}
	local, err := s.localCheckpoint(from.LocalBase) // adds its hashes to s.hashes
	if err != nil {
		return err
	}
	p := MonitorCheckpoint{
		Format:      checkpointFormat,
		Process:     in.Process,
		FDSet:       in.FDSet,
		FileHashes:  in.FileHashes,
		ContentHash: in.ContentHash,
		Delta:       in.Delta,
	}
	p.Process.Boot = s.boot
	if p.ClockOffset, err = s.clockOffset(ctx, in.Clock); err != nil {
		return err
	}
	if p.Process.Files, err = s.localFiles(in.Process.Files, in.FileHashes); err != nil {
		return err
	}
	dir := filepath.Join(imageDir, checkpointDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) { // already imported
			return nil
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if !in.Full {
		if p.Base, err = s.baseContent(ctx, in.ContentHash, in.Process.Bytes, local, from); err != nil {
			return err
		}
	}
	own := filepath.Join(dir, contentName)
	if err := p.fetchContent(ctx, own, bytes, from); err != nil {
		return err
	}
	if in.Full {
		if _, hash, err := s.hashes.ofFile(own); err != nil || hash != in.ContentHash {
			return errors.Join(
				err,
				fmt.Errorf("the received pages file has the hash %s, want %s", hash, in.ContentHash),
			)
		}
	}
	return p.write(dir)
}

// localFiles returns the files of this host with the same paths and content as the given files of
// another host.
func (s *Store) localFiles(files []checkpoint.File, want []string) ([]checkpoint.File, error) {
	out := make([]checkpoint.File, len(files))
	for i, f := range files {
		if !filepath.IsAbs(f.Path) || filepath.Clean(f.Path) != f.Path {
			return nil, fmt.Errorf("file path %q is not absolute and clean", f.Path)
		}
		is, hash, err := s.hashes.ofFile(f.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &vmm.MismatchError{Field: f.Path, Image: want[i][:16], Host: "no such file"}
		}
		if err != nil {
			return nil, err
		}
		if hash != want[i] {
			return nil, &vmm.MismatchError{Field: f.Path, Image: want[i][:16], Host: hash[:16]}
		}
		out[i] = is
	}
	return out, nil
}

// clockOffset returns how far the clock of a restored monitor must be ahead of this host's clock,
// given the monitor's clock then.
func (s *Store) clockOffset(ctx context.Context, then time.Duration) (time.Duration, error) {
	now, err := hostUptime()
	if err != nil || then <= now {
		return 0, err
	}
	if err := s.checkTimeNamespaces(ctx); err != nil {
		return 0, &vmm.MismatchError{
			Field: "clock",
			Image: then.String(),
			Host:  now.String() + ", and it cannot be set: " + err.Error(),
		}
	}
	return then - now, nil
}

// checkTimeNamespaces starts a stub to find out whether this host supports time namespaces.
func (s *Store) checkTimeNamespaces(ctx context.Context) error {
	p, err := proc.Start(proc.Command{Path: s.stub, Fork: proc.ForkAhead(time.Second)})
	if err != nil {
		return err
	}
	here, err := os.Readlink("/proc/self/ns/time")
	there, failed := os.Readlink(fmt.Sprintf("/proc/%d/ns/time", p.PID()))
	if err == nil && failed == nil && here == there {
		err = errors.New("a new process does not enter its time namespace")
	}
	return errors.Join(err, failed, p.Kill(ctx), p.Release())
}

// fetchContent writes the content of a bundle to a new file.
func (p *MonitorCheckpoint) fetchContent(
	ctx context.Context,
	path string,
	bytes int64,
	from vmm.CheckpointSource,
) error {
	if p.Base == nil {
		return receive(path, bytes, func(f *os.File) (int64, error) { return from.Fetch(ctx, false, f) })
	}
	base, err := os.Open(p.Base.Path)
	if err != nil {
		return err
	}
	defer base.Close()
	d := checkpoint.NewXORDelta(&p.Process, p.Delta, base)
	return receive(path, bytes, func(f *os.File) (int64, error) { return from.Fetch(ctx, false, d.Decoder(f)) })
}

// receive creates a file that fetch writes, and checks its size. After an error the file may exist.
func receive(path string, bytes int64, fetch func(*os.File) (int64, error)) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	received, err := fetch(f)
	if err != nil {
		return err
	}
	if received != bytes {
		return fmt.Errorf("received %d bytes of content, want %d", received, bytes)
	}
	return f.Truncate(bytes) // trailing zeros were not written
}

// localCheckpoint returns the checkpoint of an image on this host, or nil if there is none.
func (s *Store) localCheckpoint(dir string) (*MonitorCheckpoint, error) {
	if dir == "" {
		return nil, nil
	}
	return s.Find(dir)
}
