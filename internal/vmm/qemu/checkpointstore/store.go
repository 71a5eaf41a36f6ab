package checkpointstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// An image may contain, in addition to memory and device state, a checkpoint of the monitor process
// at the same moment. It includes QEMU's translation cache, so a machine restored from it need not
// translate what a guest runs first.
const (
	checkpointDir   = "process" // in the image's directory; valid on this host and for this boot
	descriptionName = "process.json"
	contentName     = "content"
	stubName        = "vehicle"
)

// checkpointFormat is the version of the description. Other versions are ignored.
const checkpointFormat = 2

// maxDescription bounds the size of a description.
const maxDescription = 4 << 20

// MonitorCheckpoint is a stored checkpoint of a monitor.
type MonitorCheckpoint struct {
	Format  int                   `json:"format"`
	Process checkpoint.Checkpoint `json:"image"`
	// FDSet is the fd set with the file for the monitor's device state.
	FDSet int `json:"set"`
	// ClockOffset is how far the clock since boot of restored monitors must be ahead of this host's
	// clock. It is set if the checkpoint came from a host whose clock was ahead, because a clock
	// must not go back.
	ClockOffset time.Duration `json:"ahead,omitempty"`
	// FileHashes are the SHA-256 hashes of Process.Files in hexadecimal. ContentHash is the hash of
	// the pages file that the monitor was restored with. They are empty if unknown.
	FileHashes  []string `json:"sums,omitempty"`
	ContentHash string   `json:"sum,omitempty"`
	// Delta are the spans of the content if it is a delta to Base.
	Delta []checkpoint.Span `json:"over,omitempty"`
	Base  *Content          `json:"base,omitempty"` // nil: the content is a complete pages file

	descriptionPath string
	contentPath     string // path of the pages file
	deltaPath       string // path of the delta to it; "": none
}

// Content identifies a pages file as long as it is not removed.
type Content struct {
	Path     string          `json:"path"`
	File     vmmproc.FileKey `json:"file"`
	Modified int64           `json:"modified"` // modification time in nanoseconds
}

// Store stores the monitor checkpoints of images. All methods may be called concurrently.
type Store struct {
	stub       string
	boot       string
	host       string // fingerprint
	contentDir string // directory of pages files from other hosts
	log        *slog.Logger

	hashes  *fileHashes
	fetchMu sync.Mutex // held while a pages file is fetched

	mu         sync.Mutex
	cache      map[string]cacheEntry    // by checkpoint directory; guarded by mu
	prefetched map[vmmproc.FileKey]bool // pages files that were read ahead; guarded by mu
}

// cacheEntry is a description that was read before.
type cacheEntry struct {
	key        vmmproc.FileKey
	modified   int64
	checkpoint *MonitorCheckpoint
}

// maxCached bounds the number of cached descriptions.
const maxCached = 64

// Open returns a store. dir is for files that belong to no image, such as the stub's executable.
func Open(dir string, log *slog.Logger) (*Store, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	s := &Store{
		stub:       filepath.Join(dir, stubName),
		log:        log,
		cache:      map[string]cacheEntry{},
		prefetched: map[vmmproc.FileKey]bool{},
		hashes:     newFileHashes(),
	}
	var err error
	if s.boot, err = checkpoint.BootID(); err != nil {
		return nil, err
	}
	if s.host, err = checkpoint.Fingerprint(); err != nil {
		return nil, err
	}
	if s.contentDir, err = openContentDir(dir, s.boot); err != nil {
		return nil, err
	}
	return s, durable.WriteFile(s.stub, checkpoint.StubProgram(), 0o755)
}

// Stub returns the path of the restore stub's executable.
func (s *Store) Stub() string { return s.stub }

// Find returns the checkpoint of an image. It returns nil if there is none or if it cannot be used,
// because the host was rebooted or a mapped program has changed. A nil Store has no checkpoints.
func (s *Store) Find(imageDir string) (*MonitorCheckpoint, error) {
	if s == nil {
		return nil, nil
	}
	dir := filepath.Join(imageDir, checkpointDir)
	f, err := os.Open(filepath.Join(dir, descriptionName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	key := vmmproc.FileKey{Device: uint64(st.Dev), Inode: st.Ino}
	p, cold, err := s.find(dir, f, cacheEntry{key: key, modified: st.Mtim.Nano()}, st.Size)
	if err != nil {
		s.log.Warn("monitor checkpoint of an image cannot be used", "image", imageDir, "why", err)
		return nil, nil
	}
	if cold {
		if err := readAhead(p.contentPath); err != nil {
			s.log.Warn("monitor checkpoint of an image was not read ahead", "image", imageDir, "why", err)
		}
	}
	return p, nil
}

// find returns the checkpoint described by an open file, from the cache if possible. cold reports
// that its pages file was not read ahead yet.
func (s *Store) find(dir string, f *os.File, is cacheEntry, bytes int64) (_ *MonitorCheckpoint, cold bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.cache[dir]; ok && k.key == is.key && k.modified == is.modified && k.checkpoint.baseExists() {
		return k.checkpoint, false, nil
	}
	is.checkpoint, err = s.load(f, bytes, filepath.Join(dir, contentName))
	if len(s.cache) >= maxCached {
		clear(s.cache)
	}
	s.cache[dir] = is
	if is.checkpoint == nil || err != nil {
		return nil, false, err
	}
	content, err := ContentOf(is.checkpoint.contentPath)
	if err != nil {
		return nil, false, err
	}
	if len(s.prefetched) >= maxCached {
		clear(s.prefetched)
	}
	cold = !s.prefetched[content.File]
	s.prefetched[content.File] = true
	return is.checkpoint, cold, nil
}

// readAheadBytes is the size of one read-ahead request; the kernel reads only a limited part of a
// larger one.
const readAheadBytes = 2 << 20

// readAhead asks the kernel to read a pages file without waiting. A monitor soon touches most of
// it, in random order.
func readAhead(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	for at := int64(0); at < st.Size(); at += readAheadBytes {
		if err := unix.Fadvise(int(f.Fd()), at, readAheadBytes, unix.FADV_WILLNEED); err != nil {
			return err
		}
	}
	return nil
}

// baseExists reports whether the base of a cached checkpoint still exists. p may be nil, for a
// directory without a usable checkpoint; that does not change.
func (p *MonitorCheckpoint) baseExists() bool {
	if p == nil || p.Base == nil {
		return true
	}
	base, err := ContentOf(p.Base.Path)
	return err == nil && *base == *p.Base
}

// load reads a description and checks that the checkpoint can be used on this host.
func (s *Store) load(f *os.File, bytes int64, content string) (*MonitorCheckpoint, error) {
	p, err := s.read(f, bytes)
	if err != nil {
		return nil, err
	}
	p.descriptionPath, p.contentPath = filepath.Join(filepath.Dir(content), descriptionName), content
	if p.Base != nil {
		base, err := ContentOf(p.Base.Path)
		if err != nil {
			return nil, err
		}
		if *base != *p.Base {
			return nil, fmt.Errorf("%s was replaced", base.Path)
		}
		p.deltaPath, p.contentPath = content, base.Path
	}
	if err := checkSize(p.contentPath, p.Process.Bytes); err != nil {
		return nil, err
	}
	if err := p.Process.CheckFiles(); err != nil {
		return nil, err
	}
	return p, s.hashes.add(p)
}

// read reads a description and checks what does not depend on other files.
func (s *Store) read(f *os.File, bytes int64) (*MonitorCheckpoint, error) {
	if bytes > maxDescription {
		return nil, fmt.Errorf("%s has %d bytes", descriptionName, bytes)
	}
	data := make([]byte, bytes)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	var p MonitorCheckpoint
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, err
	}
	if p.Format != checkpointFormat {
		return nil, fmt.Errorf("it has format %d, want %d", p.Format, checkpointFormat)
	}
	if err := p.Process.Validate(); err != nil {
		return nil, err
	}
	if p.Process.Boot != s.boot {
		return nil, errors.New("it was made before the last boot of this host")
	}
	return &p, nil
}

// Link links the description of the checkpoint to path, for ReadLink. It must be on the same file system.
func (p *MonitorCheckpoint) Link(path string) error { return os.Link(p.descriptionPath, path) }

// ReadLink returns the checkpoint whose description was linked to path. The image may have been removed since: the
// checkpoint can be the base of a dump, but nothing can be restored from it. ReadLink returns nil if path does not
// exist.
func (s *Store) ReadLink(path string) (*MonitorCheckpoint, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	p, err := s.read(f, st.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// checkSize checks the size of a pages file.
func checkSize(path string, bytes int64) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.Size() != bytes {
		return fmt.Errorf("%s has %d bytes, want %d", contentName, st.Size(), bytes)
	}
	return nil
}

// Save adds the checkpoint captured with an image to the image's directory. The fields FDSet,
// ClockOffset, Base and ContentHash of as are given by the caller.
func (s *Store) Save(imageDir string, as MonitorCheckpoint, from *checkpoint.Capture) (err error) {
	at := filepath.Join(imageDir, checkpointDir)
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	content, err := os.OpenFile(filepath.Join(at, contentName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	as.Format, as.Process = checkpointFormat, from.Checkpoint
	if as.Base == nil {
		if as.Process, err = from.Save(content); err == nil {
			as.ContentHash, err = hashFile(content)
		}
	} else {
		as.Delta, err = from.SaveDelta(content)
	}
	if err != nil {
		return err
	}
	if as.FileHashes, err = s.hashes.ofFiles(as.Process.Files); err != nil {
		return err
	}
	return as.write(at)
}

// write writes the description. It need not be durable, because it is valid only until the next
// boot.
func (p *MonitorCheckpoint) write(dir string) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	part := filepath.Join(dir, descriptionName+".part")
	if err := os.WriteFile(part, data, 0o400); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(dir, descriptionName))
}

// ContentOf returns the identity of a pages file.
func ContentOf(path string) (*Content, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Content{path, vmmproc.FileKey{Device: uint64(st.Dev), Inode: st.Ino}, st.Mtim.Nano()}, nil
}

// ContentPath returns the path of the pages file.
func (p *MonitorCheckpoint) ContentPath() string { return p.contentPath }

// DeltaPath returns the path of the pages that differ from the pages file, or "" if there are none.
func (p *MonitorCheckpoint) DeltaPath() string { return p.deltaPath }

// OpenDelta returns the pages that differ from the pages file, or nil if there are none. The caller
// closes the capture.
func (p *MonitorCheckpoint) OpenDelta() (_ *checkpoint.Capture, err error) {
	if p.deltaPath == "" {
		return nil, nil
	}
	f, err := os.Open(p.deltaPath)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return checkpoint.MapDelta(f, &p.Process, p.Delta)
}
