//go:build root

package fusefs_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/pager/fusefs"
	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
)

// TestMain also implements the processes that open and map files: a process must not map files that it
// serves.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "mapper" {
		if err := mapFile(os.Args[2], os.Args[3]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == "server" {
		if err := serve(os.Args[2]); err != nil {
			fmt.Println("error", err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// mapFile maps a file privately and sums the pages named on its input.
func mapFile(path, how string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	if advice, ok := map[string]int{"huge": unix.MADV_HUGEPAGE, "random": unix.MADV_RANDOM}[how]; ok {
		if err := unix.Madvise(mem, advice); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var off, length int
		if _, err := fmt.Sscan(in.Text(), &off, &length); err != nil {
			return err
		}
		fmt.Printf("%x\n", sha256.Sum256(mem[off:off+length]))
	}
	return nil
}

// content is a Mapped with some frames cached.
type content struct {
	data      []byte
	fail      error
	recording atomic.Bool

	mu    sync.Mutex
	here  map[int64]bool // cached frames
	asked int64
	reads int
}

func (c *content) Size() int64 { return int64(len(c.data)) }

const frame = 128 << 10

func (c *content) ReadAt(_ context.Context, p []byte, off int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return c.fail
	}
	c.reads++
	for at := off / frame; at*frame < off+int64(len(p)); at++ {
		if !c.here[at] {
			c.here[at] = true
			c.asked += frame
		}
	}
	copy(p, c.data[off:])
	return nil
}

func (c *content) IsCached(off, length int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := off / frame; at*frame < off+length; at++ {
		if !c.here[at] {
			return false
		}
	}
	return true
}

func (c *content) Recording() bool { return c.recording.Load() }

func (c *content) ReadAhead(ctx context.Context, p []byte, off int64) error {
	return c.ReadAt(ctx, p, off)
}

func (c *content) fetched() (int64, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked, c.reads
}

func newContent(size int) *content {
	c := &content{data: make([]byte, size), here: map[int64]bool{}}
	for i := 0; i < size; i += 8 {
		copy(c.data[i:], fmt.Sprintf("%08x", i))
	}
	return c
}

func mount(t *testing.T) *fusefs.FS {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Root)
	fsys, err := fusefs.Mount(t.Context(), filepath.Join(t.TempDir(), "view"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fsys.Close(); err != nil {
			t.Error(err)
		}
	})
	return fsys
}

// program is a process that maps a file.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(os.Args[0], args...)}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.cmd.Process.Kill(), p.cmd.Wait() })
	return p
}

func (p *program) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("the program ended with %q, %v", line, err)
	}
	return strings.TrimSpace(line)
}

func (p *program) sum(off, length int) string {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, off, length); err != nil {
		p.t.Fatal(err)
	}
	return p.line()
}

func (p *program) ready() *program {
	p.t.Helper()
	if line := p.line(); line != "ready" {
		p.t.Fatal(line)
	}
	return p
}

func TestMappedWithHugePages(t *testing.T) {
	c := newContent(64 << 20)
	fsys := mount(t)
	f, err := fsys.Add(t.Context(), "memory", c)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, "mapper", f.Path(), "huge").ready()
	for i := range 16 {
		off := (i*3+1)<<20 + 5*4096
		if got, want := p.sum(off, 4096), fmt.Sprintf("%x", sha256.Sum256(c.data[off:off+4096])); got != want {
			t.Fatalf("page at %d: got sum %s, want %s", off, got, want)
		}
	}
	asked, reads := c.fetched()
	t.Logf("16 pages: %d KiB asked for in %d reads", asked>>10, reads)
	if asked > 16*frame*2 {
		t.Errorf("16 pages in different windows fetched %d KiB, want at most two frames each", asked>>10)
	}
	if got, want := p.sum(0, len(c.data)), fmt.Sprintf("%x", sha256.Sum256(c.data)); got != want {
		t.Errorf("whole mapping: got sum %s, want %s", got, want)
	}
	if data, err := os.ReadFile(f.Path()); err != nil || !bytes.Equal(data, c.data) {
		t.Errorf("ReadFile = %d bytes, %v; want the content", len(data), err)
	}
}

// A monitor that reads page by page waits for single pages. The pages around them are populated in the
// background, unless a recording forbids it.
func TestPageByPage(t *testing.T) {
	c := newContent(8 << 20)
	f, err := mount(t).Add(t.Context(), "memory", c)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, "mapper", f.Path(), "random").ready()
	// asks returns how often content is read when a page is touched.
	asks := func(window, page int) int {
		t.Helper()
		_, before := c.fetched()
		off := window*frame + page*4096
		if got, want := p.sum(off, 4096), fmt.Sprintf("%x", sha256.Sum256(c.data[off:off+4096])); got != want {
			t.Fatalf("page at %d: got sum %s, want %s", off, got, want)
		}
		_, reads := c.fetched()
		return reads - before
	}
	c.recording.Store(true)
	for page := range 8 {
		if n := asks(0, page); n != 1 {
			t.Errorf("page %d of a window: got %d reads, want 1", page, n)
		}
	}
	c.recording.Store(false)
	for window := 1; ; window++ {
		if window == 14 {
			t.Fatal("the window around a page is not populated")
		}
		asks(window, 0)
		<-time.After(time.Millisecond << window) // wait longer each time
		if asks(window, 1) == 0 {
			break
		}
	}
}

func TestPopulatedPagesAreNotRead(t *testing.T) {
	c := newContent(8 << 20)
	fsys := mount(t)
	f, err := fsys.Add(t.Context(), "memory", c)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, "mapper", f.Path(), "huge").ready()
	for off := 0; off < len(c.data); off += frame {
		f.Populate(int64(off), c.data[off:off+frame])
	}
	if got, want := p.sum(0, len(c.data)), fmt.Sprintf("%x", sha256.Sum256(c.data)); got != want {
		t.Errorf("got sum %s, want %s", got, want)
	}
	if asked, reads := c.fetched(); reads != 0 {
		t.Errorf("%d KiB were fetched in %d reads, want none", asked>>10, reads)
	}
}

func TestReadErrorKillsMappingProcess(t *testing.T) {
	c := newContent(8 << 20)
	c.fail = errors.New("dead store")
	fsys := mount(t)
	f, err := fsys.Add(t.Context(), "memory", c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(f.Path()); !errors.Is(err, syscall.EIO) {
		t.Errorf("read of failing content: got %v, want EIO", err)
	}
	p := start(t, "mapper", f.Path(), "huge").ready()
	if _, err := fmt.Fprintln(p.in, 0, 8); err != nil {
		t.Fatal(err)
	}
	if line, err := p.out.ReadString('\n'); err == nil {
		t.Fatalf("reading a mapping of failing content printed %q, want the process killed", line)
	}
	_ = p.cmd.Wait()
	if p.cmd.ProcessState.Success() {
		t.Errorf("program that touches failing content: got %v, want it killed", p.cmd.ProcessState)
	}
}

// serve runs a process that serves a file until it is killed.
func serve(dir string) error {
	fsys, err := fusefs.Mount(context.Background(), dir)
	if err != nil {
		return err
	}
	if _, err := fsys.Add(context.Background(), "memory", newContent(8<<20)); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func TestServerKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "view")
	server := start(t, "server", dir).ready()
	t.Cleanup(func() { _ = fusefs.Unmount(dir) })
	p := start(t, "mapper", filepath.Join(dir, "memory"), "plain").ready()
	want := p.sum(0, 4096)
	if err := server.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.cmd.Wait()
	if got := p.sum(0, 4096); got != want {
		t.Errorf("cached page after the server was killed: got sum %s, want %s", got, want)
	}
	if _, err := fmt.Fprintln(p.in, 4<<20, 4096); err != nil {
		t.Fatal(err)
	}
	if line, err := p.out.ReadString('\n'); err == nil {
		t.Fatalf("page of a dead file system: got %q, want the process killed", line)
	}
	if _, err := os.Stat(filepath.Join(dir, "memory")); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("stat of a dead file system: got %v, want ENOTCONN", err)
	}
	fsys, err := fusefs.Mount(t.Context(), dir)
	if err != nil {
		t.Fatalf("Mount over a dead file system: %v", err)
	}
	if err := fsys.Close(); err != nil {
		t.Error(err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
		t.Errorf("directory after Close = %v, %v; want it empty", list, err)
	}
}
