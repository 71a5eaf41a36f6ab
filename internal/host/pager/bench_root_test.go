//go:build root

package pager_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/pager/pagertest"
	"github.com/pandastack/pandastack/internal/os/uffd"
	"github.com/pandastack/pandastack/internal/os/uffd/uffdtest"
)

// BenchmarkLocalFaults measures how fast faults on local pages of 4 KiB are resolved.
func BenchmarkLocalFaults(b *testing.B) {
	for _, c := range []struct {
		name   string
		around int64
	}{{"page", uffd.Page}, {"around", 0}} {
		b.Run(c.name, func(b *testing.B) {
			const size = 256 << 20
			path := filepath.Join(b.TempDir(), "memory")
			if err := os.WriteFile(path, pagertest.Pattern(size, nil), 0o600); err != nil {
				b.Fatal(err)
			}
			f, err := pager.OpenLocal(path)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			pages := 0
			seconds := 0.0
			for b.Loop() {
				p := serve(b, f, size, uffd.Page, pager.ServeOptions{FaultAround: c.around})
				took, err := p.Touch(0, size)
				if err != nil {
					b.Fatal(err)
				}
				if err := p.Kill(); err != nil {
					b.Fatal(err)
				}
				pages += size / uffd.Page
				seconds += took.Seconds()
			}
			b.ReportMetric(float64(pages)/seconds, "pages/s")
		})
	}
}

// BenchmarkPlainCopies measures how fast one thread copies pages of 4 KiB into a process without faults. It
// is the reference for BenchmarkLocalFaults.
func BenchmarkPlainCopies(b *testing.B) {
	const size = 256 << 20
	page := pagertest.Pattern(uffd.Page, nil)
	pages, seconds := 0, 0.0
	for b.Loop() {
		fd, region, p := newRegion(b, size)
		began := time.Now()
		for at := uint64(0); at < size; at += uffd.Page {
			if _, err := fd.Copy(region.Base+at, page); err != nil {
				b.Fatal(err)
			}
		}
		seconds += time.Since(began).Seconds()
		pages += size / uffd.Page
		if err := errors.Join(p.Kill(), fd.Close()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(pages)/seconds, "pages/s")
}

func newRegion(b *testing.B, size int64) (*uffd.FD, uffd.Region, *uffdtest.Process) {
	b.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(b.TempDir(), "s"), Net: "unix"})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	p, err := uffdtest.Start(b.Context(), uffdtest.Options{Socket: l.Addr().String(), Bytes: size, PageSize: uffd.Page})
	if err != nil {
		b.Fatal(err)
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		b.Fatal(errors.Join(err, p.Kill()))
	}
	defer conn.Close()
	fd, regions, err := uffd.Receive(b.Context(), conn)
	if err != nil {
		b.Fatal(errors.Join(err, p.Kill()))
	}
	return fd, regions[0], p
}
