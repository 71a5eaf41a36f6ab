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
	processDir  = "process" // in the image's directory; what is in it is of this host, and of this boot of it
	processName = "process.json"
	contentName = "content"
	vehicleName = "vehicle"
)

// processFormat names what a description means. Another is of no use.
const processFormat = 2

// maxProcess bounds the description of a process.
const maxProcess = 4 << 20

// Process is the image of a monitor.
type Process struct {
	Format int              `json:"format"`
	Image  checkpoint.Image `json:"image"`
	// Set is the set of descriptors in which the monitor held the file for its device state.
	Set int `json:"set"`
	// Ahead is how much longer than it has the host must seem to have run by the clock of monitors that are made: the
	// one in the image had seen a later time on another host. A clock goes forward only.
	Ahead time.Duration `json:"ahead,omitempty"`
	// Sums are the SHA-256 of the files of Image, and Sum that of the content with which the monitor was made, in
	// hexadecimal; "": not known here.
	Sums []string `json:"sums,omitempty"`
	Sum  string   `json:"sum,omitempty"`
	// Over is where the content lies that differs from that of Base, whose own the monitor was made with.
	Over []checkpoint.Span `json:"over,omitempty"`
	Base *Content          `json:"base,omitempty"` // nil: the content beside this is all

	content string // path of the file with the stored content
	over    string // path of what differs from it; "": nothing
}

// Content names stored content for as long as nobody takes it away.
type Content struct {
	Path     string          `json:"path"`
	File     vmmproc.FileKey `json:"file"`
	Modified int64           `json:"modified"` // nanoseconds
}

// Store makes monitors from images of monitors.
type Store struct {
	vehicle  string
	boot     string
	host     string // fingerprint
	contents string // directory of contents that came from other hosts
	log      *slog.Logger

	sums  *sums
	fetch sync.Mutex // held while contents are brought

	mu    sync.Mutex
	known map[string]known         // by directory of the process's image; guarded by mu
	warm  map[vmmproc.FileKey]bool // contents that were read ahead; guarded by mu
}

// known is a description that was read.
type known struct {
	key      vmmproc.FileKey
	modified int64
	process  *Process
}

// maxKnown bounds how many descriptions are kept.
const maxKnown = 64

// Open makes a store that keeps what belongs to no image in dir, among it the program of vehicles.
func Open(dir string, log *slog.Logger) (*Store, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	s := &Store{
		vehicle: filepath.Join(dir, vehicleName),
		log:     log,
		known:   map[string]known{},
		warm:    map[vmmproc.FileKey]bool{},
		sums:    newSums(),
	}
	var err error
	if s.boot, err = checkpoint.BootID(); err != nil {
		return nil, err
	}
	if s.host, err = checkpoint.Fingerprint(); err != nil {
		return nil, err
	}
	if s.contents, err = openContents(dir, s.boot); err != nil {
		return nil, err
	}
	return s, durable.WriteFile(s.vehicle, checkpoint.Program(), 0o755)
}

// Vehicle is the path of the program of vehicles.
func (s *Store) Vehicle() string { return s.vehicle }

// Find answers the process in an image's directory; nil when there is none that can be used now: it is of
// another boot, or a program it was made of has changed. Without a store there is none.
func (s *Store) Find(imageDir string) (*Process, error) {
	if s == nil {
		return nil, nil
	}
	dir := filepath.Join(imageDir, processDir)
	f, err := os.Open(filepath.Join(dir, processName))
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
	p, cold, err := s.find(dir, f, known{key: key, modified: st.Mtim.Nano()}, st.Size)
	if err != nil {
		s.log.Warn("the process in an image cannot be used", "image", imageDir, "why", err)
		return nil, nil
	}
	if cold {
		if err := readAhead(p.content); err != nil {
			s.log.Warn("the process in an image is not read ahead", "image", imageDir, "why", err)
		}
	}
	return p, nil
}

// find is Find of an open description, which is as the known one says if there is one; cold: its content was not read
// ahead.
func (s *Store) find(dir string, f *os.File, is known, bytes int64) (_ *Process, cold bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.known[dir]; ok && k.key == is.key && k.modified == is.modified && k.process.stands() {
		return k.process, false, nil
	}
	is.process, err = s.load(f, bytes, filepath.Join(dir, contentName))
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[dir] = is
	if is.process == nil || err != nil {
		return nil, false, err
	}
	content, err := ContentOf(is.process.content)
	if err != nil {
		return nil, false, err
	}
	if len(s.warm) >= maxKnown {
		clear(s.warm)
	}
	cold = !s.warm[content.File]
	s.warm[content.File] = true
	return is.process, cold, nil
}

// aheadBytes is how much the kernel reads ahead at least for one call, however much it is asked for.
const aheadBytes = 2 << 20

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
	for at := int64(0); at < st.Size(); at += aheadBytes {
		if err := unix.Fadvise(int(f.Fd()), at, aheadBytes, unix.FADV_WILLNEED); err != nil {
			return err
		}
	}
	return nil
}

// stands tells whether the content of a process that was found before is there still; nil is none, and stays none.
func (p *Process) stands() bool {
	if p == nil || p.Base == nil {
		return true
	}
	base, err := ContentOf(p.Base.Path)
	return err == nil && *base == *p.Base
}

// load reads the description of a process and holds it against this host. An error says why it is of no use here.
func (s *Store) load(f *os.File, bytes int64, content string) (*Process, error) {
	if bytes > maxProcess {
		return nil, fmt.Errorf("%s has %d bytes", processName, bytes)
	}
	data := make([]byte, bytes)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	p := Process{content: content}
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, err
	}
	if p.Format != processFormat {
		return nil, fmt.Errorf("it is of format %d, want %d", p.Format, processFormat)
	}
	if err := p.Image.Check(); err != nil {
		return nil, err
	}
	if p.Image.Boot != s.boot {
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
		p.over, p.content = content, base.Path
	}
	if err := expect(p.content, p.Image.Bytes); err != nil {
		return nil, err
	}
	if err := p.Image.Fits(); err != nil {
		return nil, err
	}
	return &p, s.sums.learn(&p)
}

// expect makes sure of the size of a file with stored content.
func expect(path string, bytes int64) error {
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
func (s *Store) Save(imageDir string, as Process, from *checkpoint.Capture) (err error) {
	at := filepath.Join(imageDir, processDir)
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	content, err := os.OpenFile(filepath.Join(at, contentName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	as.Format, as.Image = processFormat, from.Image
	if as.Base == nil {
		if as.Image, err = from.Save(content); err == nil {
			as.Sum, err = sumOf(content)
		}
	} else {
		as.Over, err = from.SaveOver(content)
	}
	if err != nil {
		return err
	}
	if as.Sums, err = s.sums.of(as.Image.Files); err != nil {
		return err
	}
	return as.write(at)
}

// write makes the description of a process in its directory. Not durably: it is of use in this boot of the host
// alone.
func (p *Process) write(dir string) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	part := filepath.Join(dir, processName+".part")
	if err := os.WriteFile(part, data, 0o400); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(dir, processName))
}

// ContentOf names the content that a file holds.
func ContentOf(path string) (*Content, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Content{path, vmmproc.FileKey{Device: uint64(st.Dev), Inode: st.Ino}, st.Mtim.Nano()}, nil
}

// Content is the path of the file with the stored content.
func (p *Process) Content() string { return p.content }

// Difference is what a process holds besides its stored content, to be closed; nil: nothing.
func (p *Process) Difference() (_ *checkpoint.Capture, err error) {
	if p.over == "" {
		return nil, nil
	}
	f, err := os.Open(p.over)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return checkpoint.MapOver(f, &p.Image, p.Over)
}
