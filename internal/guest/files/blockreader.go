package files

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// pageSize is the alignment of blocks in a file. The block size of every disk divides it.
const pageSize = 4096

// blockReader reads a large file block by block: from the kernel's page cache what is cached, and everything else
// with O_DIRECT, for the same reasons as for writes (see directSize).
type blockReader struct {
	file  *os.File
	block []byte // of directSize bytes, aligned to pages
	have  []byte // part of block that was not yet returned
	at    int64  // offset in the file of the byte after have
	left  int64  // bytes still to return
	flags int    // O_DIRECT until the file system refuses it
	now   int    // current flags of the file
}

// newBlockReader returns a reader of length bytes from offset, or fewer if the file ends before. The reader owns the
// file.
func newBlockReader(file *os.File, offset, length int64) (*blockReader, error) {
	block, err := unix.Mmap(-1, 0, directSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, classify(err)
	}
	return &blockReader{file: file, block: block, at: offset, left: length, flags: unix.O_DIRECT}, nil
}

func (w *blockReader) Close() error { return errors.Join(unix.Munmap(w.block), w.file.Close()) }

func (w *blockReader) Read(b []byte) (int, error) {
	piece, err := w.Next(len(b))
	return copy(b, piece), err
}

// Next returns at most so many of the next bytes, without a copy. They are valid until the next call.
func (w *blockReader) Next(most int) ([]byte, error) {
	if w.left == 0 {
		return nil, io.EOF
	}
	if len(w.have) == 0 {
		if err := w.fill(); err != nil {
			return nil, err
		}
	}
	n := int(min(int64(len(w.have)), int64(most), w.left))
	piece := w.have[:n]
	w.have = w.have[n:]
	w.left -= int64(n)
	return piece, nil
}

// fill reads the block that contains the next byte.
func (w *blockReader) fill() error {
	begin := w.at &^ (pageSize - 1)
	flags := w.flags
	if w.cached(begin) {
		flags = 0
	}
	n, err := w.get(begin, flags)
	if err != nil {
		return classify(err)
	}
	end := begin + int64(n)
	if end <= w.at {
		return io.EOF
	}
	w.have, w.at = w.block[w.at-begin:n], end
	return nil
}

// cached reports whether part of the block is in the kernel's page cache. It returns true if the kernel cannot say.
func (w *blockReader) cached(begin int64) bool {
	if w.flags == 0 {
		return true
	}
	var st unix.Cachestat_t
	err := unix.Cachestat(
		uint(w.file.Fd()),
		&unix.CachestatRange{Off: uint64(begin), Len: uint64(len(w.block))},
		&st,
		0,
	)
	if err != nil {
		w.flags = 0
	}
	return err != nil || st.Cache > 0
}

// get reads the block with the given flags of the file.
func (w *blockReader) get(begin int64, flags int) (int, error) {
	if flags != w.now {
		_, err := unix.FcntlInt(w.file.Fd(), unix.F_SETFL, flags)
		switch {
		case errors.Is(err, unix.EINVAL) && flags != 0: // the file system has no direct reads
			w.flags = 0
		case err != nil:
			return 0, err
		default:
			w.now = flags
		}
	}
	for {
		n, err := unix.Pread(int(w.file.Fd()), w.block, begin)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL) && w.now != 0: // some file systems refuse direct reads only here
			w.flags = 0
			return w.get(begin, 0)
		default:
			return n, err
		}
	}
}
