package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// directSize is how many bytes a direct write has, and the file size from which on files are written past the
// kernel's page cache. Without KVM, a page that goes through the cache costs more than receiving it, and a large
// upload would fill the memory of a small machine. While the disk writes a block, the sender can continue for as long
// as its credit (mux.Window) and the device's buffers last, which is about as much as a block.
const directSize = 512 << 10

// store writes a stream into a new file; size is its length, negative if unknown.
func store(ctx context.Context, file *os.File, r io.Reader, size int64) error {
	if size >= 0 && size < directSize {
		return copyAll(ctx, file, r)
	}
	block, err := unix.Mmap(-1, 0, directSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return classify(fmt.Errorf("allocate memory for writing: %w", err))
	}
	defer func() { _ = unix.Munmap(block) }() // the mapping is our own
	b := &blockWriter{file: file, block: block, flags: unix.O_DIRECT}
	if err := copyAll(ctx, b, r); err != nil {
		return err
	}
	return b.flush()
}

// blockWriter writes a file in whole blocks from its beginning, past the page cache if its file system supports that.
type blockWriter struct {
	file  *os.File
	block []byte // of directSize bytes, aligned to pages
	used  int    // bytes of block that are not yet written
	flags int    // O_DIRECT until the file system refuses it
	now   int    // current flags of the file
}

// Write implements io.Writer. It buffers an incomplete block until flush.
func (b *blockWriter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n := copy(b.block[b.used:], p[done:])
		b.used += n
		done += n
		if b.used < len(b.block) {
			break
		}
		if err := b.put(b.flags); err != nil {
			return done, err
		}
	}
	return done, nil
}

// flush writes the end of the file, which need not fill a block of the disk.
func (b *blockWriter) flush() error {
	if b.used == 0 {
		return nil
	}
	return classify(b.put(0))
}

// put writes the block with the given flags of the file.
func (b *blockWriter) put(flags int) error {
	if err := b.setFlags(flags); err != nil {
		return err
	}
	n, err := b.file.Write(b.block[:b.used])
	if n == 0 && b.now != 0 && errors.Is(err, unix.EINVAL) { // some file systems refuse direct writes only here
		b.flags = 0
		return b.put(0)
	}
	b.used = 0
	return err
}

// setFlags sets the flags of the file. It does not try again on a file system without direct writes.
func (b *blockWriter) setFlags(flags int) error {
	if flags == b.now {
		return nil
	}
	_, err := unix.FcntlInt(b.file.Fd(), unix.F_SETFL, flags)
	if errors.Is(err, unix.EINVAL) && flags != 0 {
		b.flags = 0
		return nil
	}
	if err != nil {
		return fmt.Errorf("set flags of %s: %w", b.file.Name(), err)
	}
	b.now = flags
	return nil
}
