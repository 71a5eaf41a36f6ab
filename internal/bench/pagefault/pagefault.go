// Package pagefault measures how fast the pager resolves the page faults of a process.
//
// The reference is the best that the kernel can do: a loop that installs one page after the other while no thread waits
// for them. The package knows neither nodes nor guests: the process that touches memory is this program, started
// again by uffdtest.
package pagefault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/bench"
	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/pager/pagertest"
	"github.com/pandastack/pandastack/internal/os/uffd"
	"github.com/pandastack/pandastack/internal/os/uffd/uffdtest"
)

// size is the amount of memory that is touched, in bytes: 65,536 pages.
const size = 256 << 20

// The target is met if one of these two rates is reached.
const (
	leastShare = 60      // percent of the rate of the plain loop, page by page
	leastPages = 150_000 // pages a second, with fault-around
)

// Measure measures page faults on local memory: page by page, with fault-around, and without a pager. It repeats all
// three several times. work is an empty directory. Measure must not be called concurrently.
func Measure(ctx context.Context, work string, s *bench.Sheet) (err error) {
	path := filepath.Join(work, "memory")
	if err := os.WriteFile(path, pagertest.Pattern(size, nil), 0o600); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	f, err := pager.OpenLocal(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	plain := s.Series("pager_plain", "4 KiB pages that a plain loop installs, with no thread waiting", "pages/s", nil)
	single := s.Series("pager_page", "faults on local 4 KiB pages, one page per fault", "faults/s", nil)
	share := s.Series("pager_page_share", "the same as a share of the plain loop in the same run", "%", nil)
	around := s.Series("pager_around", "local 4 KiB pages, with fault-around", "pages/s", nil)
	kept := s.Series(
		"pager_promise",
		"share of the target that is reached, the better of: 150,000 pages/s with fault-around, "+
			"60 % of the plain loop page by page",
		"%",
		&bench.Target{Least: 100},
	)
	for range s.Times(5) {
		none, err := loop(ctx, work)
		if err != nil {
			return err
		}
		one, err := serve(ctx, work, f, uffd.Page)
		if err != nil {
			return err
		}
		many, err := serve(ctx, work, f, 0)
		if err != nil {
			return err
		}
		s.Add(plain, none)
		s.Add(single, one)
		s.Add(share, 100*one/none)
		s.Add(around, many)
		s.Add(kept, 100*max(many/leastPages, 100*one/none/leastShare))
	}
	return nil
}

// rate returns how many pages a second were installed.
func rate(took time.Duration) float64 { return size / uffd.Page / took.Seconds() }

// process starts a process that registers its memory with a userfaultfd, and returns the socket over which it sends
// the descriptor.
func process(ctx context.Context, work string) (_ *uffdtest.Process, _ *net.UnixConn, err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(work, "s"), Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	p, err := uffdtest.Start(ctx, uffdtest.Options{Socket: l.Addr().String(), Bytes: size, PageSize: uffd.Page})
	if err != nil {
		return nil, nil, err
	}
	if err := l.SetDeadline(time.Now().Add(handLimit)); err != nil {
		return nil, nil, errors.Join(err, p.Kill())
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("the process did not send its userfaultfd: %w", err), p.Kill())
	}
	return p, conn, nil
}

// handLimit is how long a process may take to send its userfaultfd.
const handLimit = 20 * time.Second

// serve measures the pager with a process that touches every page in order. around is the fault-around size; 0 is the
// pager's default.
func serve(ctx context.Context, work string, f *pager.File, around int64) (float64, error) {
	p, conn, err := process(ctx, work)
	if err != nil {
		return 0, err
	}
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx, conn, pager.ServeOptions{FaultAround: around}) }()
	took, err := p.Touch(0, size)
	err = errors.Join(err, p.Kill(), <-served)
	return rate(took), err
}

// loop measures the reference: it installs the pages of a process that touches nothing.
func loop(ctx context.Context, work string) (_ float64, err error) {
	p, conn, err := process(ctx, work)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.Kill(), conn.Close()) }()
	fd, regions, err := uffd.Receive(ctx, conn)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, fd.Close()) }()
	page := pagertest.Pattern(uffd.Page, nil)
	began := time.Now()
	for at := uint64(0); at < size; at += uffd.Page {
		if _, err := fd.Copy(regions[0].Base+at, page); err != nil {
			return 0, err
		}
	}
	return rate(time.Since(began)), nil
}
