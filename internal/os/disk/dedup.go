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
	// dedupBlock is the unit that file systems share, and the unit in which Dedup looks for equal content.
	dedupBlock = 4 << 10
	// dedupStride is the distance between the indexed blocks of a known file: a run worth sharing spans many.
	dedupStride = 64 << 10
	// minDedupRun is the shortest run that is shared. Every run adds an extent, which makes every clone
	// slower.
	minDedupRun = 1 << 20
	// maxDedupCall is how much one call to the kernel shares: the kernel compares the bytes under a lock.
	maxDedupCall = 16 << 20
)

// Dedup makes the file at path share disk blocks with the known files where their content is equal. It shares
// every long run of the file's content that one of the known files contains too, at any offset. The content
// of the file does not change: the kernel compares the bytes before it shares the blocks. Dedup returns the
// number of bytes that are shared now. It ignores known files that do not exist, and reads the others once,
// completely.
func Dedup(ctx context.Context, path string, known []string) (shared int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("deduplicate: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s := &deduper{ctx: ctx, to: f, seed: maphash.MakeSeed(), blocks: map[uint64]blockRef{}}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, k := range known {
		if err := s.index(k); err != nil {
			return 0, fmt.Errorf("deduplicate: %w", err)
		}
	}
	if len(s.blocks) == 0 {
		return 0, nil
	}
	if err := eachData(f, s.scan); err != nil {
		return s.shared, fmt.Errorf("deduplicate %s: %w", path, err)
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
	done   int64               // the file has been searched up to this offset
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

// index adds blocks of a known file to the index.
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

// scan searches a range of the file, which ends where a hole begins, for indexed content.
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

// dedupRun shares the run of equal content around an indexed block, if the run is long enough. It returns the
// end of the run, or offset if the run is too short.
func (s *deduper) dedupRun(p blockRef, offset, limit int64) (int64, error) {
	from, known := offset, p.offset
	// The content between the previous indexed block and this one may be equal too.
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
			break // another process writes to one of the files
		}
		at += n
		s.shared += n
	}
	return end, nil
}

// equalBytes returns how many bytes are equal, in whole blocks and at most n.
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

// dedupe has the kernel compare and share a range. It returns the number of bytes that are shared.
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
