// Package fusefs shows content that this process has as files that others can open and map: one FUSE file
// system, mounted at one directory.
//
// It owns the mount and the answers to the kernel. It must not know where content comes from, nor what a
// file is for.
//
// A file that is mapped is read by the kernel in windows, larger than what was asked for: a monitor advises
// huge pages, and then a fault reads 2 to 4 MiB. A window costs nothing where the content is here, and a
// transfer where it is not. So a read of more than one page is refused once if its content is not here; the
// kernel then asks for exactly the page that somebody waits for, and is answered. Programs never see
// the refusal. What lies around such a page, or one that a monitor asked for alone, in the same window is put into the
// kernel's cache afterwards, so that nobody waits for more than a page, and not every page is asked for on its own.
//
// When the process of a mount dies, opens and reads answer ENOTCONN and touches of mappings SIGBUS: nobody
// hangs. Mount removes what a dead process left at its directory.
//
// All methods may be called at once.
package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Content is what a file shows.
type Content interface {
	// Size is fixed, in bytes.
	Size() int64
	// ReadAt fills p from off on. An error is EIO to whoever reads.
	ReadAt(ctx context.Context, p []byte, off int64) error
}

// Mapped is Content that never changes and is kept in the kernel's cache.
type Mapped interface {
	Content
	// IsCached says whether a read of a range is answered without waiting.
	IsCached(off, length int64) bool
	// Recording says that nothing is to be brought in now but what somebody asks for.
	Recording() bool
	// ReadAhead is ReadAt of what nobody has asked for.
	ReadAhead(ctx context.Context, p []byte, off int64) error
}

// Writable is Content that is written to, and not kept in the kernel's cache.
type Writable interface {
	Content
	WriteAt(ctx context.Context, p []byte, off int64) error
	Sync() error
}

// FS is a mounted view.
type FS struct {
	dir    string
	server *fuse.Server
	root   *fs.Inode

	queue  chan populateRequest
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	files map[string]bool
}

const (
	// readBytes is the most the kernel asks for in one request: a window.
	windowBytes = 128 << 10
	// warmers put windows into the kernel's cache; of more than maxAround that wait the rest is left out.
	populateWorkers = 2
	maxQueued       = 256
)

// populateRequest is a window to be put into the kernel's cache.
type populateRequest struct {
	node   *node
	window int64
}

// Mount mounts a view without files at dir, which is made if need be, until Close. It needs the right to mount. Whoever
// reaches dir may open its files: keep strangers away by the rights of the directories above.
func Mount(ctx context.Context, dir string) (*FS, error) {
	life := time.Hour // of what the kernel knows of names and sizes: they never change
	if err := Unmount(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("mount a view: %w", err)
	}
	root := &fs.Inode{}
	server, err := fs.Mount(dir, root, &fs.Options{
		MountOptions: fuse.MountOptions{
			AllowOther: true, DirectMountStrict: true, FsName: "pandastack", Name: "pandastack",
			MaxWrite: windowBytes, MaxReadAhead: windowBytes, DisableXAttrs: true, EnableLocks: false,
			// A monitor's reads may all wait for the store, and others must not wait for them.
			MaxBackground: 512, ExplicitDataCacheControl: true,
		},
		EntryTimeout: &life, AttrTimeout: &life,
		RootStableAttr: &fs.StableAttr{Ino: 1},
	})
	if err != nil {
		return nil, fmt.Errorf("mount a view at %s: %w", dir, err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	v := &FS{
		dir:    dir,
		server: server,
		root:   root,
		files:  map[string]bool{},
		queue:  make(chan populateRequest, maxQueued),
		cancel: cancel,
	}
	for range populateWorkers {
		v.work.Go(func() { v.populate(ctx) })
	}
	return v, nil
}

// populate puts windows into the kernel's cache until ctx ends. It runs beside the answers: the kernel locks a
// page from its question to the answer, and storing a page waits for its lock.
func (v *FS) populate(ctx context.Context) {
	buf := make([]byte, windowBytes)
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-v.queue:
			off := a.window * windowBytes
			data := buf[:min(windowBytes, a.node.content.Size()-off)]
			if a.node.mapped.ReadAhead(ctx, data, off) == nil {
				_ = a.node.WriteCache(off, data) // nobody has it open any more
			}
		}
	}
}

// Unmount takes a view away that is mounted at dir, by whomever; without one it does nothing. Files that are
// open or mapped go on to be answered while their process lives.
func Unmount(dir string) error {
	for range 16 { // one could be mounted over another
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	return fmt.Errorf("unmount %s: it is mounted too often", dir)
}

// Close takes the view away. Reads that wait are ended, and mappings of its files cannot be used any more.
func (v *FS) Close() error {
	if err := Unmount(v.dir); err != nil {
		return err
	}
	defer v.work.Wait()
	v.cancel()
	// The connection ends with its last file; whoever still has one open is cut off.
	if err := v.server.Unmount(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("unmount %s: %w", v.dir, err)
	}
	return nil
}

// File is one file of a view.
type File struct {
	fs   *FS
	name string
	node *node
}

// Add makes a file of content, which is Mapped or Written; another is read-only and not cached.
func (v *FS) Add(ctx context.Context, name string, content Content) (*File, error) {
	if name == "" || filepath.Base(name) != name {
		return nil, fmt.Errorf("view: %q is no name of a file", name)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.files[name] {
		return nil, fmt.Errorf("view: %s: %w", name, os.ErrExist)
	}
	n := &node{content: content, queue: v.queue}
	n.mapped, _ = content.(Mapped)
	n.writable, _ = content.(Writable)
	child := v.root.NewPersistentInode(ctx, n, fs.StableAttr{Mode: fuse.S_IFREG})
	if !v.root.AddChild(name, child, false) {
		return nil, fmt.Errorf("view: %s: %w", name, os.ErrExist)
	}
	v.files[name] = true
	return &File{v, name, n}, nil
}

// Path is where the file is to be opened.
func (f *File) Path() string { return filepath.Join(f.fs.dir, f.name) }

// Populate puts content into the kernel's cache, so that nobody has to ask for it. Off and the length of data are
// multiples of a page, but for the end of the file. Without anybody who has the file open it may do nothing.
func (f *File) Populate(off int64, data []byte) {
	_ = f.node.WriteCache(off, data)
}

// Remove takes the file's name away. Who has it open is answered as before.
func (f *File) Remove() {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if !f.fs.files[f.name] {
		return
	}
	delete(f.fs.files, f.name)
	f.fs.root.RmChild(f.name)
	_ = f.fs.root.NotifyEntry(f.name) // nobody knows it: nothing to forget
}
