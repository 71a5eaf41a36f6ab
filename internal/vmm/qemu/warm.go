package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/durable"
	"github.com/pandastack/pandastack/internal/procimage"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/monitor"
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
const processFormat = 1

// maxProcess bounds the description of a process.
const maxProcess = 4 << 20

// process is the image of a monitor.
type process struct {
	Format int             `json:"format"`
	Image  procimage.Image `json:"image"`
	// Set is the set of descriptors in which the monitor held the file for its device state.
	Set int `json:"set"`
	// Over is where the content lies that differs from that of Base, whose own the monitor was made with.
	Over []procimage.Span `json:"over,omitempty"`
	Base *contentFile     `json:"base,omitempty"` // nil: the content beside this is all

	content string // path of the file with the stored content
	over    string // path of what differs from it; "": nothing
}

// contentFile names stored content for as long as nobody takes it away.
type contentFile struct {
	Path     string          `json:"path"`
	File     monitor.FileKey `json:"file"`
	Modified int64           `json:"modified"` // nanoseconds
}

// warmth makes monitors from images of monitors.
type warmth struct {
	vehicle string // path of the program
	boot    string
	log     *slog.Logger

	mu    sync.Mutex
	known map[string]known // by directory of the process's image; guarded by mu
}

// known is a description that was read.
type known struct {
	key      monitor.FileKey
	modified int64
	process  *process
}

// maxKnown bounds how many descriptions are kept.
const maxKnown = 64

func newWarmth(dir string, log *slog.Logger) (*warmth, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	w := &warmth{vehicle: filepath.Join(dir, vehicleName), log: log, known: map[string]known{}}
	var err error
	if w.boot, err = procimage.BootID(); err != nil {
		return nil, err
	}
	return w, durable.WriteFile(w.vehicle, procimage.Program(), 0o755)
}

// find answers the process in an image's directory; nil when there is none that can be used now: it is of
// another boot, or a program it was made of has changed.
func (w *warmth) find(imageDir string) (*process, error) {
	if w == nil {
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
	key := monitor.FileKey{Device: uint64(st.Dev), Inode: st.Ino}
	w.mu.Lock()
	defer w.mu.Unlock()
	if k, ok := w.known[dir]; ok && k.key == key && k.modified == st.Mtim.Nano() && k.process.stands() {
		return k.process, nil
	}
	p, err := w.load(f, st.Size, filepath.Join(dir, contentName))
	if err != nil {
		w.log.Warn("the process in an image cannot be used", "image", imageDir, "why", err)
		p = nil
	}
	if len(w.known) >= maxKnown {
		clear(w.known)
	}
	w.known[dir] = known{key, st.Mtim.Nano(), p}
	return p, nil
}

var _ vmm.Rememberer = (*Driver)(nil)

// Remembers implements vmm.Rememberer.
func (d *Driver) Remembers(image vmm.Image) (bool, error) {
	p, err := d.warm.find(image.Dir)
	return p != nil, err
}

// stands tells whether the content of a process that was found before is there still; nil is none, and stays none.
func (p *process) stands() bool {
	if p == nil || p.Base == nil {
		return true
	}
	base, err := contentOf(p.Base.Path)
	return err == nil && *base == *p.Base
}

// load reads the description of a process and holds it against this host. An error says why it is of no use here.
func (w *warmth) load(f *os.File, bytes int64, content string) (*process, error) {
	if bytes > maxProcess {
		return nil, fmt.Errorf("%s has %d bytes", processName, bytes)
	}
	data := make([]byte, bytes)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	p := process{content: content}
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, err
	}
	if p.Format != processFormat {
		return nil, fmt.Errorf("it is of format %d, want %d", p.Format, processFormat)
	}
	if err := p.Image.Check(); err != nil {
		return nil, err
	}
	if p.Image.Boot != w.boot {
		return nil, errors.New("it is of another boot of this host")
	}
	if p.Base != nil {
		base, err := contentOf(p.Base.Path)
		if err != nil {
			return nil, err
		}
		if *base != *p.Base {
			return nil, fmt.Errorf("%s is another file now", base.Path)
		}
		p.over, p.content = content, base.Path
	}
	st, err := os.Stat(p.content)
	if err != nil {
		return nil, err
	}
	if st.Size() != p.Image.Bytes {
		return nil, fmt.Errorf("%s has %d bytes, want %d", contentName, st.Size(), p.Image.Bytes)
	}
	return &p, p.Image.Fits()
}

// refuse tells why the image of a monitor has no process in it.
func (w *warmth) refuse(err error) {
	w.log.Warn("machines of an image begin by their device state alone, which takes longer", "why", err)
}

// writeProcess completes an image in dir with the process that was captured with it.
func (c *capture) writeProcess(dir string) (err error) {
	if c.process == nil || c.content != nil && c.made == nil {
		return nil
	}
	at := filepath.Join(dir, processDir)
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	content, err := os.OpenFile(filepath.Join(at, contentName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	p := process{Format: processFormat, Set: c.set, Image: c.process.Image, Base: c.made}
	if c.made == nil {
		p.Image, err = c.process.Save(content)
	} else {
		p.Over, err = c.process.SaveOver(content)
	}
	if err != nil {
		return err
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	// Not durably: it is of use in this boot of the host alone.
	return os.WriteFile(filepath.Join(at, processName), data, 0o400)
}

// contentOf names the content that a file holds.
func contentOf(path string) (*contentFile, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &contentFile{path, monitor.FileKey{Device: uint64(st.Dev), Inode: st.Ino}, st.Mtim.Nano()}, nil
}

// difference reads what a process holds besides its stored content; nil: nothing.
func (p *process) difference() (_ *procimage.Capture, err error) {
	if p.over == "" {
		return nil, nil
	}
	f, err := os.Open(p.over)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return procimage.ReadOver(f, &p.Image, p.Over)
}

// Roles of a monitor's descriptors.
const (
	roleNothing = "nothing" // /dev/null, and what is of no use to another process
	roleLog     = "log"
	roleTap     = "tap " // and the size of the header before each packet, which monitor and tap agree on
	roleMemory  = "memory"
	roleListen  = "listen " // and the name of the socket, as in roleTalk
	roleTalk    = "talk "
	roleDisk    = "disk "
	writable    = " writable"
)

// Numbers of devices (Documentation/admin-guide/devices.txt).
var (
	nullDevice = unix.Mkdev(1, 3)
	tunDevice  = unix.Mkdev(10, 200)
)

// role names what a descriptor of the monitor stands for.
func (m *machine) role(f *os.File, link string) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return socketRole(f)
	case unix.S_IFIFO: // of whoever started this program, and not closed
		return roleNothing, nil
	case unix.S_IFCHR:
		switch uint64(st.Rdev) {
		case nullDevice:
			return roleNothing, nil
		case tunDevice:
			header, err := unix.IoctlGetInt(int(f.Fd()), unix.TUNGETVNETHDRSZ)
			if err != nil {
				return "", fmt.Errorf("size of headers of the tap: %w", err)
			}
			return roleTap + strconv.Itoa(header), nil
		}
	case unix.S_IFREG:
		return m.fileRole(f, link, monitor.FileKey{Device: uint64(st.Dev), Inode: st.Ino})
	}
	return "", fmt.Errorf("%w: %s", procimage.ErrUnsupported, link)
}

func socketRole(f *os.File) (string, error) {
	name, err := unix.Getsockname(int(f.Fd()))
	if err != nil {
		return "", err
	}
	local, ok := name.(*unix.SockaddrUnix)
	if !ok {
		return "", fmt.Errorf("%w: a socket of another kind", procimage.ErrUnsupported)
	}
	base := filepath.Base(local.Name)
	if base != monitorSocket && base != channelSocket {
		return "", fmt.Errorf("%w: a socket called %q", procimage.ErrUnsupported, local.Name)
	}
	listens, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return "", err
	}
	if listens != 0 {
		return roleListen + base, nil
	}
	return roleTalk + base, nil
}

func (m *machine) fileRole(f *os.File, link string, key monitor.FileKey) (string, error) {
	switch {
	case key == m.record.mapped(), key == m.record.Memory:
		return roleMemory, nil
	case strings.HasPrefix(link, "/memfd:log"):
		return roleLog, nil
	case strings.HasPrefix(link, "/memfd:"), key.Inode == m.record.Content:
		return roleNothing, nil
	}
	for i, d := range m.spec.Disks {
		var st unix.Stat_t
		if err := unix.Stat(d.Path, &st); err != nil || (monitor.FileKey{Device: uint64(st.Dev), Inode: st.Ino}) != key {
			continue
		}
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		if err != nil {
			return "", err
		}
		return diskRole(i, flags&unix.O_ACCMODE != unix.O_RDONLY), nil
	}
	return "", fmt.Errorf("%w: %s", procimage.ErrUnsupported, link)
}

func diskRole(i int, write bool) string {
	if write {
		return fmt.Sprint(roleDisk, i, writable)
	}
	return fmt.Sprint(roleDisk, i)
}
