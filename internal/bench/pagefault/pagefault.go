// Package pagefault measures how fast the pager gives a process the memory it touches, beside what the kernel does
// at best: a loop that puts one page after the other where nobody waits for them.
//
// It owns the measurement and no number of it. It must not know nodes or guests: the process that touches
// memory is this program, started again.
//
// Measure may be called once at a time.
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

// size is the memory that is touched, in bytes: 65,536 pages.
const size = 256 << 20

// What is promised: one of the two, whichever is kept better.
const (
	leastShare = 60      // percent of the plain loop
	leastPages = 150_000 // a second
)

// Measure touches every page of memory that is all here, again and again: page by page, with the pages around
// each put in place with it, and without a pager. work is an empty directory.
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
	plain := s.Series("pager_plain", "pages of 4 KiB that a plain loop puts in place, nobody waiting", "pages/s", nil)
	single := s.Series("pager_page", "faults on pages of 4 KiB that are here, one page each", "faults/s", nil)
	share := s.Series("pager_page_share", "the same as a share of the plain loop in the same run", "%", nil)
	around := s.Series("pager_around", "pages of 4 KiB that are here, with those around each fault", "pages/s", nil)
	kept := s.Series(
		"pager_promise",
		"the better of both promises, as far as it is kept: pages/s of 150,000 with those around each fault, or 60 % of the plain loop page by page",
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

// rate is how many pages a second were put in place.
func rate(took time.Duration) float64 { return size / uffd.Page / took.Seconds() }

// process starts a process that hands its memory over, and answers the socket it does that on.
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
		return nil, nil, errors.Join(fmt.Errorf("no memory was handed over: %w", err), p.Kill())
	}
	return p, conn, nil
}

// handLimit is how long a process may take to come up.
const handLimit = 20 * time.Second

// serve answers the faults of a process that touches every page, in order.
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

// loop fills the memory of a process that touches nothing.
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
