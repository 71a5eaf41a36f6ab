package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// shareBlock is the unit that file systems share, and that content is looked for in.
	dedupBlock = 4 << 10
	// shareStride is how far apart blocks of the known files are that are remembered: a run that is worth
	// sharing has many.
	dedupStride = 64 << 10
	// shareLeast is the shortest run that is shared. Every run is an extent more, which every clone pays for.
	minDedupRun = 1 << 20
	// shareMost is how much one call to the kernel shares: it compares the bytes under a lock.
	maxDedupCall = 16 << 20
)

// Dedup makes the file at path use the same blocks on disk as the known files, wherever a long run of its
// content is in one of them too, at whatever offset. What a reader sees does not change: the kernel compares
// before it shares. It answers how many bytes are shared now. Known files that are not there are left out.
// They are read once, to their end.
func Dedup(ctx context.Context, path string, known []string) (shared int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("share blocks: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s := &deduper{ctx: ctx, to: f, seed: maphash.MakeSeed(), blocks: map[uint64]blockRef{}}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, k := range known {
		if err := s.index(k); err != nil {
			return 0, fmt.Errorf("share blocks: %w", err)
		}
	}
	if len(s.blocks) == 0 {
		return 0, nil
	}
	if err := eachData(f, s.scan); err != nil {
		return s.shared, fmt.Errorf("share blocks of %s: %w", path, err)
	}
	return s.shared, nil
}

// blockRef is a block of a known file.
type blockRef struct {
	file   *os.File
	offset int64
}

type deduper struct {
	ctx    context.Context
	to     *os.File
	known  []*os.File
	seed   maphash.Seed
	blocks map[uint64]blockRef // by hash of the content
	done   int64               // everything of the file before it has been looked at
	shared int64
	a, b   [dedupStride]byte
}

func (s *deduper) close() error {
	var err error
	for _, f := range s.known {
		err = errors.Join(err, f.Close())
	}
	return err
}

// index remembers blocks of a file.
func (s *deduper) index(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	s.known = append(s.known, f)
	buf := make([]byte, dedupBlock)
	return eachData(f, func(from, to int64) error {
		for at := (from + dedupStride - 1) / dedupStride * dedupStride; at+dedupBlock <= to; at += dedupStride {
			if err := context.Cause(s.ctx); err != nil {
				return err
			}
			if _, err := f.ReadAt(buf, at); err != nil {
				return err
			}
			if !isZero(buf) {
				s.blocks[maphash.Bytes(s.seed, buf)] = blockRef{f, at}
			}
		}
		return nil
	})
}

// scan looks for known content in a range of the file, which ends where a hole begins.
func (s *deduper) scan(from, to int64) error {
	buf := make([]byte, copyUnit)
	for at := max(s.done, from); at+dedupBlock <= to; {
		if err := context.Cause(s.ctx); err != nil {
			return err
		}
		n, err := s.to.ReadAt(buf[:min(copyUnit, to-at)], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		next := at + int64(n)/dedupBlock*dedupBlock
		if next == at {
			return nil
		}
		for i := 0; i+dedupBlock <= n; i += dedupBlock {
			p, ok := s.blocks[maphash.Bytes(s.seed, buf[i:i+dedupBlock])]
			if !ok {
				continue
			}
			end, err := s.dedupRun(p, at+int64(i), to)
			if err != nil {
				return err
			}
			if end > at+int64(i) {
				next = end
				break
			}
		}
		at = next
		s.done = at
	}
	return nil
}

// dedupRun shares what begins with a known block and is long enough, and answers where it ends; offset if it is
// too short.
func (s *deduper) dedupRun(p blockRef, offset, limit int64) (int64, error) {
	from, known := offset, p.offset
	// What lies between two remembered blocks before it may be equal too.
	for known >= dedupBlock && from-dedupBlock >= s.done && offset-from < dedupStride {
		same, err := s.equalBytes(p.file, known-dedupBlock, from-dedupBlock, dedupBlock)
		if err != nil {
			return 0, err
		}
		if same < dedupBlock {
			break
		}
		from, known = from-dedupBlock, known-dedupBlock
	}
	end := offset
	for end+dedupBlock <= limit {
		n, err := s.equalBytes(p.file, p.offset+end-offset, end, min(dedupStride, (limit-end)/dedupBlock*dedupBlock))
		if err != nil {
			return 0, err
		}
		end += n
		if n < dedupStride {
			break
		}
	}
	if end-from < minDedupRun {
		return offset, nil
	}
	for at := from; at < end; {
		n, err := s.dedupe(p.file, known+at-from, at, min(maxDedupCall, end-at))
		if err != nil {
			return 0, err
		}
		if n == 0 {
			break // somebody writes into one of them
		}
		at += n
		s.shared += n
	}
	return end, nil
}

// equalBytes answers how many bytes of whole blocks are equal, at most n.
func (s *deduper) equalBytes(known *os.File, a, b, n int64) (int64, error) {
	x, y := s.a[:n], s.b[:n]
	m, err := known.ReadAt(x, a)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if _, err := s.to.ReadAt(y, b); err != nil {
		return 0, err
	}
	equal := 0
	for equal+dedupBlock <= m && bytes.Equal(x[equal:equal+dedupBlock], y[equal:equal+dedupBlock]) {
		equal += dedupBlock
	}
	return int64(equal), nil
}

// dedupe lets the kernel compare and share a range, and answers how much of it is shared.
func (s *deduper) dedupe(known *os.File, a, b, n int64) (int64, error) {
	req := unix.FileDedupeRange{Src_offset: uint64(a), Src_length: uint64(n),
		Info: []unix.FileDedupeRangeInfo{{Dest_fd: int64(s.to.Fd()), Dest_offset: uint64(b)}}}
	if err := unix.IoctlFileDedupeRange(int(known.Fd()), &req); err != nil {
		return 0, fmt.Errorf("share a range of blocks: %w", err)
	}
	got := req.Info[0]
	if got.Status < 0 {
		return 0, fmt.Errorf("share a range of blocks: %w", unix.Errno(-got.Status))
	}
	return int64(got.Bytes_deduped), nil
}
