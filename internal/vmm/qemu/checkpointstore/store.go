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

// An image may hold, besides memory and device state, the image of the monitor as a process at the same moment.
// QEMU's translations are in it: a machine that is made of it has not to translate what a guest does first.
const (
	checkpointDir   = "process" // in the image's directory; what is in it is of this host, and of this boot of it
	descriptionName = "process.json"
	contentName     = "content"
	stubName        = "vehicle"
)

// checkpointFormat names what a description means. Another is of no use.
const checkpointFormat = 2

// maxDescription bounds the description of a process.
const maxDescription = 4 << 20

// MonitorCheckpoint is the image of a monitor.
type MonitorCheckpoint struct {
	Format  int                   `json:"format"`
	Process checkpoint.Checkpoint `json:"image"`
	// FDSet is the set of descriptors in which the monitor held the file for its device state.
	FDSet int `json:"set"`
	// ClockOffset is how much longer than it has the host must seem to have run by the clock of monitors that are made: the
	// one in the image had seen a later time on another host. A clock goes forward only.
	ClockOffset time.Duration `json:"ahead,omitempty"`
	// FileHashes are the SHA-256 of the files of Image, and Sum that of the content with which the monitor was made, in
	// hexadecimal; "": not known here.
	FileHashes  []string `json:"sums,omitempty"`
	ContentHash string   `json:"sum,omitempty"`
	// Delta is where the content lies that differs from that of Base, whose own the monitor was made with.
	Delta []checkpoint.Span `json:"over,omitempty"`
	Base  *Content          `json:"base,omitempty"` // nil: the content beside this is all

	contentPath string // path of the file with the stored content
	deltaPath   string // path of what differs from it; "": nothing
}

// Content names stored content for as long as nobody takes it away.
type Content struct {
	Path     string          `json:"path"`
	File     vmmproc.FileKey `json:"file"`
	Modified int64           `json:"modified"` // nanoseconds
}

// Store makes monitors from images of monitors.
type Store struct {
	stub       string
	boot       string
	host       string // fingerprint
	contentDir string // directory of contents that came from other hosts
	log        *slog.Logger

	hashes  *fileHashes
	fetchMu sync.Mutex // held while contents are brought

	mu         sync.Mutex
	cache      map[string]cacheEntry    // by directory of the process's image; guarded by mu
	prefetched map[vmmproc.FileKey]bool // contents that were read ahead; guarded by mu
}

// cacheEntry is a description that was read.
type cacheEntry struct {
	key        vmmproc.FileKey
	modified   int64
	checkpoint *MonitorCheckpoint
}

// maxKnown bounds how many descriptions are kept.
const maxKnown = 64

// Open makes a store that keeps what belongs to no image in dir, among it the program of vehicles.
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

// Stub is the path of the program of vehicles.
func (s *Store) Stub() string { return s.stub }

// Find answers the process in an image's directory; nil when there is none that can be used now: it is of
// another boot, or a program it was made of has changed. Without a store there is none.
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
		s.log.Warn("the process in an image cannot be used", "image", imageDir, "why", err)
		return nil, nil
	}
	if cold {
		if err := readAhead(p.contentPath); err != nil {
			s.log.Warn("the process in an image is not read ahead", "image", imageDir, "why", err)
		}
	}
	return p, nil
}

// find is Find of an open description, which is as the known one says if there is one; cold: its content was not read
// ahead.
func (s *Store) find(dir string, f *os.File, is cacheEntry, bytes int64) (_ *MonitorCheckpoint, cold bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.cache[dir]; ok && k.key == is.key && k.modified == is.modified && k.checkpoint.baseExists() {
		return k.checkpoint, false, nil
	}
	is.checkpoint, err = s.load(f, bytes, filepath.Join(dir, contentName))
	if len(s.cache) >= maxKnown {
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
	if len(s.prefetched) >= maxKnown {
		clear(s.prefetched)
	}
	cold = !s.prefetched[content.File]
	s.prefetched[content.File] = true
	return is.checkpoint, cold, nil
}

// readAheadBytes is how much the kernel reads ahead at least for one call, however much it is asked for.
const readAheadBytes = 2 << 20

// readAhead has the kernel read stored content: a monitor soon touches most of it, here and there. It waits for none of that.
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

// baseExists tells whether the content of a process that was found before is there still; nil is none, and stays none.
func (p *MonitorCheckpoint) baseExists() bool {
	if p == nil || p.Base == nil {
		return true
	}
	base, err := ContentOf(p.Base.Path)
	return err == nil && *base == *p.Base
}

// load reads the description of a process and holds it against this host. An error says why it is of no use here.
func (s *Store) load(f *os.File, bytes int64, content string) (*MonitorCheckpoint, error) {
	if bytes > maxDescription {
		return nil, fmt.Errorf("%s has %d bytes", descriptionName, bytes)
	}
	data := make([]byte, bytes)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	p := MonitorCheckpoint{contentPath: content}
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, err
	}
	if p.Format != checkpointFormat {
		return nil, fmt.Errorf("it is of format %d, want %d", p.Format, checkpointFormat)
	}
	if err := p.Process.Validate(); err != nil {
		return nil, err
	}
	if p.Process.Boot != s.boot {
		return nil, errors.New("it is of another boot of this host")
	}
	if p.Base != nil {
		base, err := ContentOf(p.Base.Path)
		if err != nil {
			return nil, err
		}
		if *base != *p.Base {
			return nil, fmt.Errorf("%s is another file now", base.Path)
		}
		p.deltaPath, p.contentPath = content, base.Path
	}
	if err := checkSize(p.contentPath, p.Process.Bytes); err != nil {
		return nil, err
	}
	if err := p.Process.CheckFiles(); err != nil {
		return nil, err
	}
	return &p, s.hashes.add(&p)
}

// checkSize makes sure of the size of a file with stored content.
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

// Save writes the process that was captured with an image into the image's directory. as says what is known of it
// besides: its Set, Ahead, Base and Sum.
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

// write makes the description of a process in its directory. Not durably: it is of use in this boot of the host
// alone.
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

// ContentOf names the content that a file holds.
func ContentOf(path string) (*Content, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Content{path, vmmproc.FileKey{Device: uint64(st.Dev), Inode: st.Ino}, st.Mtim.Nano()}, nil
}

// ContentPath is the path of the file with the stored content.
func (p *MonitorCheckpoint) ContentPath() string { return p.contentPath }

// OpenDelta is what a process holds besides its stored content, to be closed; nil: nothing.
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
