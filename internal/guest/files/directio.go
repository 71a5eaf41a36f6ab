package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// directSize is how many bytes go to the disk at once, and from how many on a file is written past the kernel's
// cache. Without KVM a page that goes through the cache costs more than to receive it; and a large file that
// was just uploaded would take the memory of a small machine. A block takes the disk a moment in which the sender
// goes on as far as its credit (mux.Window) and the device's own buffers go, about as far as this.
const directSize = 512 << 10

// store writes a stream into a new file, of size bytes if that is not negative.
func store(ctx context.Context, file *os.File, r io.Reader, size int64) error {
	if size >= 0 && size < directSize {
		return copyAll(ctx, file, r)
	}
	block, err := unix.Mmap(-1, 0, directSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fault(fmt.Errorf("take memory for writing: %w", err))
	}
	defer func() { _ = unix.Munmap(block) }() // of our own making
	b := &blocks{file: file, block: block, flags: unix.O_DIRECT}
	if err := copyAll(ctx, b, r); err != nil {
		return err
	}
	return b.flush()
}

// blocks writes a file in whole blocks from its beginning, past the kernel's cache where its file system can.
type blocks struct {
	file  *os.File
	block []byte // of directSize bytes, aligned to pages
	used  int    // bytes of block that are not yet written
	flags int    // O_DIRECT until the file system refused it
	now   int    // flags of the file
}

// Write implements io.Writer. What does not fill a block waits for flush.
func (b *blocks) Write(p []byte) (int, error) {
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

// flush writes the end of the file, which need not be as long as the disk's blocks.
func (b *blocks) flush() error {
	if b.used == 0 {
		return nil
	}
	return fault(b.put(0))
}

// put writes the block with the given flags of the file.
func (b *blocks) put(flags int) error {
	if err := b.become(flags); err != nil {
		return err
	}
	n, err := b.file.Write(b.block[:b.used])
	if n == 0 && b.now != 0 && errors.Is(err, unix.EINVAL) { // it says so only now
		b.flags = 0
		return b.put(0)
	}
	b.used = 0
	return err
}

// become sets the flags of the file. A file system that has no direct writes is not asked again.
func (b *blocks) become(flags int) error {
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
