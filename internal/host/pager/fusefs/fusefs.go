// Package fusefs presents content of this process as files that other processes can open and map.
//
// It owns one FUSE file system, mounted at one directory, and the replies to the kernel. It does not know
// where content comes from, nor what a file is for.
//
// The kernel reads a mapped file in windows larger than the request: a monitor advises huge pages, and then a
// fault reads 2 to 4 MiB. That is free where the content is cached, and a download where it is not. So a read
// of more than one page whose content is not cached is refused once; the kernel then asks for exactly the
// page that a thread waits for, and gets it. Programs never see the refusal. Afterwards the rest of the
// window around such a page, or around a page that was requested alone, is put into the kernel's page cache.
// So threads wait for one page at most, and not every page costs a request.
//
// When the process of a mount dies, opens and reads fail with ENOTCONN and accesses to mappings with SIGBUS:
// nothing hangs. Mount removes what a dead process left at its directory.
//
// All methods may be called concurrently.
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

// Content is the content of a file.
type Content interface {
	// Size returns the size in bytes, which never changes.
	Size() int64
	// ReadAt fills p from off on. The reader of the file sees an error as EIO.
	ReadAt(ctx context.Context, p []byte, off int64) error
}

// Mapped is Content that never changes and stays in the kernel's page cache.
type Mapped interface {
	Content
	// IsCached reports whether a range can be read without waiting.
	IsCached(off, length int64) bool
	// Recording reports whether only requested pages may be read now.
	Recording() bool
	// ReadAhead is ReadAt for content that was not requested.
	ReadAhead(ctx context.Context, p []byte, off int64) error
}

// Writable is Content that can be written and is not cached by the kernel.
type Writable interface {
	Content
	WriteAt(ctx context.Context, p []byte, off int64) error
	Sync() error
}

// FS is a mounted file system.
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
	// windowBytes is the size of a window, the most that the kernel reads in one request.
	windowBytes = 128 << 10
	// populateWorkers put windows into the kernel's page cache. At most maxQueued windows wait; further ones
	// are dropped.
	populateWorkers = 2
	maxQueued       = 256
)

// populateRequest is a window to be put into the kernel's page cache.
type populateRequest struct {
	node   *node
	window int64
}

// Mount mounts an empty file system at dir until Close. It makes dir if necessary. Mounting needs privileges.
// Every user who can reach dir may open its files: restrict access by the permissions of the parent
// directories.
func Mount(ctx context.Context, dir string) (*FS, error) {
	ttl := time.Hour // how long the kernel keeps names and sizes, which never change
	if err := Unmount(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("mount FUSE file system: %w", err)
	}
	root := &fs.Inode{}
	server, err := fs.Mount(dir, root, &fs.Options{
		MountOptions: fuse.MountOptions{
			AllowOther: true, DirectMountStrict: true, FsName: "pandastack", Name: "pandastack",
			MaxWrite: windowBytes, MaxReadAhead: windowBytes, DisableXAttrs: true, EnableLocks: false,
			// All reads of a monitor may wait for the store, and those of others must not wait for them.
			MaxBackground: 512, ExplicitDataCacheControl: true,
		},
		EntryTimeout: &ttl, AttrTimeout: &ttl,
		RootStableAttr: &fs.StableAttr{Ino: 1},
	})
	if err != nil {
		return nil, fmt.Errorf("mount FUSE file system at %s: %w", dir, err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	fsys := &FS{
		dir:    dir,
		server: server,
		root:   root,
		files:  map[string]bool{},
		queue:  make(chan populateRequest, maxQueued),
		cancel: cancel,
	}
	for range populateWorkers {
		fsys.work.Go(func() { fsys.populate(ctx) })
	}
	return fsys, nil
}

// populate puts windows into the kernel's page cache until ctx ends. It runs apart from the replies: the
// kernel locks a page from its request to the reply, and storing a page waits for the lock.
func (fsys *FS) populate(ctx context.Context) {
	buf := make([]byte, windowBytes)
	for {
		select {
		case <-ctx.Done():
			return
		case req := <-fsys.queue:
			off := req.window * windowBytes
			data := buf[:min(windowBytes, req.node.content.Size()-off)]
			if req.node.mapped.ReadAhead(ctx, data, off) == nil {
				_ = req.node.WriteCache(off, data) // the file may be closed everywhere by now
			}
		}
	}
}

// Unmount unmounts what is mounted at dir, also by another process. It does nothing if nothing is mounted.
// Open and mapped files work as long as the process that serves them lives.
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
	return fmt.Errorf("unmount %s: too many mounts on top of each other", dir)
}

// Close unmounts the file system. It ends waiting reads; mappings of its files become unusable.
func (fsys *FS) Close() error {
	if err := Unmount(fsys.dir); err != nil {
		return err
	}
	defer fsys.work.Wait()
	fsys.cancel()
	// The connection lives as long as a file is open. This cuts off the processes that have one open.
	if err := fsys.server.Unmount(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("unmount %s: %w", fsys.dir, err)
	}
	return nil
}

// File is one file of the file system.
type File struct {
	fs   *FS
	name string
	node *node
}

// Add makes a file. Content that is neither Mapped nor Writable is read-only and not cached.
func (fsys *FS) Add(ctx context.Context, name string, content Content) (*File, error) {
	if name == "" || filepath.Base(name) != name {
		return nil, fmt.Errorf("add file: invalid name %q", name)
	}
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	if fsys.files[name] {
		return nil, fmt.Errorf("add file %s: %w", name, os.ErrExist)
	}
	n := &node{content: content, queue: fsys.queue}
	n.mapped, _ = content.(Mapped)
	n.writable, _ = content.(Writable)
	child := fsys.root.NewPersistentInode(ctx, n, fs.StableAttr{Mode: fuse.S_IFREG})
	if !fsys.root.AddChild(name, child, false) {
		return nil, fmt.Errorf("add file %s: %w", name, os.ErrExist)
	}
	fsys.files[name] = true
	return &File{fsys, name, n}, nil
}

// Path returns the path of the file.
func (f *File) Path() string { return filepath.Join(f.fs.dir, f.name) }

// Populate puts content into the kernel's page cache, so that no process has to request it. off and the
// length of data are multiples of the page size, except at the end of the file. Populate may do nothing if no
// process has the file open.
func (f *File) Populate(off int64, data []byte) {
	_ = f.node.WriteCache(off, data)
}

// Remove removes the file's name. Processes that have it open can still use it.
func (f *File) Remove() {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if !f.fs.files[f.name] {
		return
	}
	delete(f.fs.files, f.name)
	f.fs.root.RmChild(f.name)
	_ = f.fs.root.NotifyEntry(f.name) // fails if the kernel does not know the name, which then needs no invalidation
}
