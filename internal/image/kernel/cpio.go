package kernel

import (
	"fmt"
	"io"
)

// Modes of entries, as in stat(2).
const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeChar = 0o020000
)

// cpioWriter writes the "newc" archive that the kernel unpacks into its first root file system
// (Documentation/driver-api/early-userspace/buffer-format.rst). Times and owners are zero, so that equal content
// makes an equal archive.
type cpioWriter struct {
	w   io.Writer
	ino int
	at  int64
	err error
}

// entry begins an entry; exactly size bytes of content follow through write.
func (c *cpioWriter) entry(name string, mode uint32, size int64, major, minor int) {
	c.ino++
	c.printf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.ino, mode, 0, 0, 1, 0, size, 0, 0, major, minor, len(name)+1, 0)
	c.printf("%s\x00", name)
	c.pad()
}

func (c *cpioWriter) dir(name string) { c.entry(name, modeDir|0o755, 0, 0, 0) }

func (c *cpioWriter) char(name string, mode uint32, major, minor int) {
	c.entry(name, modeChar|mode, 0, major, minor)
}

// file writes an entry with size bytes of content from r.
func (c *cpioWriter) file(name string, mode uint32, size int64, r io.Reader) {
	if size > 0xffffffff && c.err == nil {
		c.err = fmt.Errorf("%s has %d bytes, more than the archive format can hold", name, size)
	}
	c.entry(name, modeFile|mode, size, 0, 0)
	if c.err != nil {
		return
	}
	n, err := io.Copy(c.w, io.LimitReader(r, size))
	c.at += n
	if err == nil && n != size {
		err = fmt.Errorf("%s became shorter while it was read", name)
	}
	c.err = err
	c.pad()
}

// close ends the archive and returns the first error of all calls.
func (c *cpioWriter) close() error {
	c.entry("TRAILER!!!", 0, 0, 0, 0)
	return c.err
}

func (c *cpioWriter) printf(format string, args ...any) {
	if c.err != nil {
		return
	}
	n, err := fmt.Fprintf(c.w, format, args...)
	c.at += int64(n)
	c.err = err
}

// pad fills up to the next multiple of four bytes.
func (c *cpioWriter) pad() {
	if rest := c.at % 4; rest != 0 {
		c.printf("%s", "\x00\x00\x00"[:4-rest])
	}
}
