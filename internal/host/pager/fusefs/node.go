package fusefs

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is the inode of one file.
type node struct {
	fs.Inode
	content  Content
	mapped   Mapped   // nil if the content is not Mapped
	writable Writable // nil if the content is not Writable

	queue chan<- populateRequest

	mu      sync.Mutex
	refused map[int64]bool // windows whose first large read was refused
	queued  map[int64]bool // windows that were populated, or are queued
}

var (
	_ fs.NodeGetattrer = (*node)(nil)
	_ fs.NodeSetattrer = (*node)(nil)
	_ fs.NodeOpener    = (*node)(nil)
	_ fs.NodeReader    = (*node)(nil)
	_ fs.NodeWriter    = (*node)(nil)
	_ fs.NodeFsyncer   = (*node)(nil)
)

const page = 4 << 10

// Getattr implements fs.NodeGetattrer.
func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = fuse.S_IFREG | 0o444
	if n.writable != nil {
		out.Mode = fuse.S_IFREG | 0o666
	}
	out.Size = uint64(n.content.Size())
	out.Blksize = page
	out.Blocks = (out.Size + 511) / 512
	return 0
}

// Setattr implements fs.NodeSetattrer. It accepts only the current size.
func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok && size != uint64(n.content.Size()) {
		return syscall.EPERM
	}
	return n.Getattr(ctx, h, out)
}

// Open implements fs.NodeOpener.
func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	switch {
	case n.mapped != nil:
		return nil, fuse.FOPEN_KEEP_CACHE, 0
	case n.writable == nil && flags&syscall.O_ACCMODE != syscall.O_RDONLY:
		return nil, 0, syscall.EROFS
	}
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// Read implements fs.NodeReader.
func (n *node) Read(ctx context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	length := min(int64(len(dest)), n.content.Size()-off)
	if length <= 0 {
		return fuse.ReadResultData(nil), 0
	}
	if n.refuse(off, length) {
		return nil, syscall.EAGAIN
	}
	dest = dest[:length]
	if err := n.content.ReadAt(ctx, dest, off); err != nil {
		return nil, syscall.EIO
	}
	if length <= page && n.mapped != nil && !n.mapped.Recording() {
		n.queuePopulate(off / windowBytes)
	}
	return fuse.ReadResultData(dest), 0
}

// refuse reports whether to refuse a read that no thread waits for completely.
func (n *node) refuse(off, length int64) bool {
	if n.mapped == nil || length <= page || n.mapped.IsCached(off, length) {
		return false
	}
	first, last := off/windowBytes, (off+length-1)/windowBytes
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refused == nil {
		n.refused = map[int64]bool{}
	}
	fresh := true
	for w := first; w <= last; w++ {
		if n.refused[w] {
			fresh = false
		}
		n.refused[w] = true
	}
	return fresh
}

// queuePopulate queues the rest of a window, of which a page was read, for the kernel's page cache, once.
func (n *node) queuePopulate(window int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.queued[window] {
		return
	}
	if n.queued == nil {
		n.queued = map[int64]bool{}
	}
	select {
	case n.queue <- populateRequest{n, window}:
		n.queued[window] = true
	default: // the queue is full: the window is read page by page
	}
}

// Write implements fs.NodeWriter.
func (n *node) Write(ctx context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if n.writable == nil {
		return 0, syscall.EROFS
	}
	if off+int64(len(data)) > n.content.Size() {
		return 0, syscall.EFBIG
	}
	if err := n.writable.WriteAt(ctx, data, off); err != nil {
		return 0, errnoOf(err)
	}
	return uint32(len(data)), 0
}

// Fsync implements fs.NodeFsyncer.
func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	if n.writable == nil {
		return 0
	}
	if err := n.writable.Sync(); err != nil {
		return errnoOf(err)
	}
	return 0
}

// errnoOf returns the error number of an operation on the host's disk, such as ENOSPC, which the guest then
// sees.
func errnoOf(err error) syscall.Errno {
	var no syscall.Errno
	if errors.As(err, &no) && no != 0 {
		return no
	}
	return syscall.EIO
}
