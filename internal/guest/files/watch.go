package files

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM |
	unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_ONLYDIR

// watcher is a guestapi.Watcher. It has no goroutine: changes that Next has not read wait in the kernel, whose queue
// is bounded.
type watcher struct {
	root      string
	recursive bool
	file      *os.File
	raw       syscall.RawConn

	mu     sync.Mutex     // held by Next
	dirs   map[int]string // watch number to path below root; "" is root
	buf    []byte
	unread []byte // events read and not yet parsed
	queue  []guestapi.FileEvent
}

// Watch reports changes below a directory from now on.
func (f *Files) Watch(_ context.Context, p, user string, recursive bool) (guestapi.Watcher, error) {
	at, _, err := f.locate(p, user)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(at)
	if err != nil {
		return nil, classify(err)
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("%s: %w", at, guestapi.ErrNotDir)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w: %w", at, guestapi.ErrBusy, err)
	}
	w := &watcher{root: at, recursive: recursive, file: os.NewFile(uintptr(fd), "inotify"),
		dirs: make(map[int]string), buf: make([]byte, 16<<10)}
	if w.raw, err = w.file.SyscallConn(); err == nil {
		err = w.add("", false)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// add watches a directory and, if recursive, the directories below. With report set, the entries it finds are
// reported as created, since they may have been created before the watch existed.
func (w *watcher) add(dir string, report bool) error {
	if len(w.dirs) >= maxWatches {
		return fmt.Errorf("%w: more than %d directories to watch", guestapi.ErrBusy, maxWatches)
	}
	var wd int
	var err error
	if closed := w.raw.Control(func(fd uintptr) {
		wd, err = unix.InotifyAddWatch(int(fd), path.Join(w.root, dir), watchMask)
	}); closed != nil {
		return fmt.Errorf("watch %s: %w", dir, closed)
	}
	if errors.Is(err, unix.ENOENT) && dir != "" || errors.Is(err, unix.ENOTDIR) && dir != "" {
		return nil // removed already
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, classify(err))
	}
	w.dirs[wd] = dir
	if !w.recursive {
		return nil
	}
	entries, err := os.ReadDir(path.Join(w.root, dir))
	if err != nil && dir == "" {
		return classify(err)
	}
	for _, e := range entries {
		sub := path.Join(dir, e.Name())
		if report {
			w.deliver(guestapi.OpCreate, sub)
		}
		if e.IsDir() {
			if err := w.add(sub, report); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *watcher) deliver(op guestapi.FileOp, p string) {
	if len(p) <= guestapi.MaxPath {
		w.queue = append(w.queue, guestapi.FileEvent{Op: op, Path: p})
	}
}

// Next waits for the next change.
func (w *watcher) Next(ctx context.Context) (guestapi.FileEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Fails only on a closed file, whose reader returns anyway.
	stop := context.AfterFunc(ctx, func() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		if len(w.queue) > 0 {
			e := w.queue[0]
			w.queue = w.queue[1:]
			return e, nil
		}
		if len(w.unread) > 0 {
			w.event()
			continue
		}
		if len(w.dirs) == 0 {
			return guestapi.FileEvent{}, io.EOF // the directory was removed
		}
		n, err := w.file.Read(w.buf)
		if ctx.Err() != nil {
			_ = w.file.SetReadDeadline(time.Time{}) // for the next call; a closed file needs none
			return guestapi.FileEvent{}, context.Cause(ctx)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) { // left over from an earlier call
			err = w.file.SetReadDeadline(time.Time{})
		}
		if err != nil {
			return guestapi.FileEvent{}, classify(err)
		}
		w.unread = w.buf[:n]
	}
}

const eventSize = 16 // size of struct inotify_event without its name

// event parses one event of the bytes read.
func (w *watcher) event() {
	b := w.unread
	if len(b) < eventSize || len(b) < eventSize+int(binary.NativeEndian.Uint32(b[12:])) {
		w.unread = nil
		return
	}
	wd, mask := int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:])
	end := eventSize + int(binary.NativeEndian.Uint32(b[12:]))
	name := strings.TrimRight(string(b[eventSize:end]), "\x00")
	w.unread = b[end:]
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.deliver(guestapi.OpOverflow, "")
		return
	}
	dir, known := w.dirs[wd]
	if mask&unix.IN_IGNORED != 0 {
		delete(w.dirs, wd)
		return
	}
	if !known || name == "" {
		return // concerns the directory itself, which its parent reports too
	}
	w.change(mask, path.Join(dir, name))
}

func (w *watcher) change(mask uint32, p string) {
	sub := mask&unix.IN_ISDIR != 0 && w.recursive
	switch {
	case mask&unix.IN_CREATE != 0, mask&unix.IN_MOVED_TO != 0:
		w.deliver(guestapi.OpCreate, p)
		if sub && w.add(p, true) != nil {
			w.deliver(guestapi.OpOverflow, "") // changes below will be missed
		}
	case mask&unix.IN_MODIFY != 0:
		w.deliver(guestapi.OpWrite, p)
	case mask&unix.IN_ATTRIB != 0:
		w.deliver(guestapi.OpChmod, p)
	case mask&unix.IN_DELETE != 0:
		w.deliver(guestapi.OpRemove, p)
	case mask&unix.IN_MOVED_FROM != 0:
		w.deliver(guestapi.OpRename, p)
		if sub {
			w.leave(p)
		}
	}
}

// leave stops watching a directory that was moved away, and the directories below it.
func (w *watcher) leave(dir string) {
	for wd, at := range w.dirs {
		if at == dir || strings.HasPrefix(at, dir+"/") {
			// Neither call fails in a way that matters: the watch or the whole watcher may have ended already.
			_ = w.raw.Control(func(fd uintptr) {
				_, _ = unix.InotifyRmWatch(int(fd), uint32(wd))
			})
			delete(w.dirs, wd)
		}
	}
}

// Close closes the watcher and ends a Next in progress.
func (w *watcher) Close() error { return w.file.Close() }
