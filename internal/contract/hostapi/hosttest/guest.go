package hosttest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// file is one file or directory of a guest.
type file struct {
	dir  bool
	data []byte
	mode uint32
	at   time.Time

	owner *[2]uint32 // user and group; nil: the user of the guest
}

func copyFiles(from map[string]file) map[string]file {
	to := make(map[string]file, len(from))
	for p, f := range from {
		f.data = bytes.Clone(f.data)
		to[p] = f
	}
	return to
}

// guestState is the part of a guest that survives restores: its files and its environment.
type guestState struct {
	mu    sync.Mutex
	host  string
	user  string
	home  string
	env   map[string]string
	files map[string]file

	readOnly []string // mount points
	servers  []server // servers of a machine that does not run
}

func (in *guestState) copy(host string, env map[string]string) *guestState {
	in.mu.Lock()
	defer in.mu.Unlock()
	if host == "" {
		host = in.host
	}
	return &guestState{host: host, user: in.user, home: in.home, env: maps.Clone(env), files: copyFiles(in.files),
		readOnly: slices.Clone(in.readOnly)}
}

// writeFiles writes the files of an identity.
func (in *guestState) writeFiles(files map[string]string) {
	for name, content := range files {
		in.files[name] = file{data: []byte(content), mode: 0o644, at: time.Now()}
	}
}

// guest implements guestapi.Guest for one generation of a machine.
type guest struct {
	*guestState
	lost chan struct{}
	once sync.Once
	hook func(ctx context.Context) error // nil: none

	pmu   sync.Mutex
	procs map[uint32]*process
	next  uint32
	ports map[uint16]func(net.Conn)

	sockets  map[string]SocketServer // by path
	programs map[string]Program      // by name
}

// SocketServer serves connections to a Unix socket of a guest, whose files it may use.
type SocketServer func(ctx context.Context, files guestapi.FileSystem, c net.Conn)

var _ guestapi.Guest = (*guest)(nil)

func newGuest(in *guestState) *guest {
	return &guest{
		guestState: in,
		lost:       make(chan struct{}),
		procs:      map[uint32]*process{},
		next:       100,
		ports: map[uint16]func(net.Conn){
			7: func(c net.Conn) { _, _ = io.Copy(c, c) }, // an echo server; how its client ends does not matter
		},
	}
}

// Done is closed when the generation has ended.
func (g *guest) Done() <-chan struct{} { return g.lost }

// lose ends the generation: every later call returns ErrLost.
func (g *guest) lose() { g.once.Do(func() { close(g.lost) }) }

func (g *guest) alive(ctx context.Context) error {
	if g.hook != nil {
		if err := g.hook(ctx); err != nil {
			return err
		}
	}
	select {
	case <-g.lost:
		return guestapi.ErrLost
	default:
		return context.Cause(ctx)
	}
}

func (g *guest) resolve(p string) (string, error) {
	if p == "" || strings.ContainsRune(p, 0) {
		return "", fmt.Errorf("path %q: %w", p, guestapi.ErrInvalid)
	}
	if !path.IsAbs(p) {
		p = path.Join(g.home, p)
	}
	return path.Clean(p), nil
}

// lookup finds a path, with g.mu held. Every directory above a file exists, and so does the home.
func (g *guest) lookup(p string) (file, bool) {
	if f, ok := g.files[p]; ok {
		return f, true
	}
	if p == "/" || p == "/tmp" || strings.HasPrefix(g.home+"/", p+"/") {
		return file{dir: true, mode: 0o755}, true
	}
	for k := range g.files {
		if strings.HasPrefix(k, p+"/") {
			return file{dir: true, mode: 0o755}, true
		}
	}
	return file{}, false
}

func (g *guest) info(p string, f file) guestapi.FileInfo {
	kind := guestapi.KindFile
	if f.dir {
		kind = guestapi.KindDir
	}
	info := guestapi.FileInfo{Path: p, Name: path.Base(p), Kind: kind, Size: int64(len(f.data)), Mode: f.mode,
		UID: 1000, GID: 1000, User: g.user, Group: g.user, Modified: f.at}
	if f.owner != nil {
		info.UID, info.GID = f.owner[0], f.owner[1]
		info.User, info.Group = strconv.Itoa(int(info.UID)), strconv.Itoa(int(info.GID))
	}
	return info
}

// writable reports whether p is on no volume that is mounted read-only, with g.mu held.
func (g *guest) writable(p string) error {
	for _, dir := range g.readOnly {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return fmt.Errorf("%s: read-only file system: %w", p, guestapi.ErrPermission)
		}
	}
	return nil
}

func missing(p string) error { return fmt.Errorf("%s: %w", p, guestapi.ErrNotFound) }

// withPath runs f with the file at p and the lock.
func (g *guest) withPath(ctx context.Context, p string, f func(p string, f file, ok bool) error) error {
	if err := g.alive(ctx); err != nil {
		return err
	}
	p, err := g.resolve(p)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	found, ok := g.lookup(p)
	return f(p, found, ok)
}

// Stat implements guestapi.Guest.
func (g *guest) Stat(ctx context.Context, p, user string) (info guestapi.FileInfo, err error) {
	err = g.withPath(ctx, p, func(p string, f file, ok bool) error {
		if !ok {
			return missing(p)
		}
		info = g.info(p, f)
		return nil
	})
	return info, err
}

// List implements guestapi.Guest.
func (g *guest) List(ctx context.Context, p, user string, depth int) (list []guestapi.FileInfo, err error) {
	err = g.withPath(ctx, p, func(p string, f file, ok bool) error {
		switch {
		case !ok:
			return missing(p)
		case !f.dir:
			return fmt.Errorf("%s: %w", p, guestapi.ErrNotDir)
		}
		seen := map[string]bool{}
		for k := range g.files {
			rest, below := strings.CutPrefix(k, strings.TrimSuffix(p, "/")+"/")
			if !below {
				continue
			}
			parts := strings.Split(rest, "/")
			for i := 1; i <= min(len(parts), max(depth, 1)); i++ {
				seen[path.Join(p, path.Join(parts[:i]...))] = true
			}
		}
		for _, k := range slices.Sorted(maps.Keys(seen)) {
			entry, _ := g.lookup(k)
			list = append(list, g.info(k, entry))
		}
		return nil
	})
	return list, err
}

// Read implements guestapi.Guest.
func (g *guest) Read(
	ctx context.Context,
	p, user string,
	offset, length int64,
) (info guestapi.FileInfo, r io.ReadCloser, err error) {
	err = g.withPath(ctx, p, func(p string, f file, ok bool) error {
		switch {
		case !ok:
			return missing(p)
		case f.dir:
			return fmt.Errorf("%s: %w", p, guestapi.ErrIsDir)
		}
		info = g.info(p, f)
		data := f.data[min(max(offset, 0), int64(len(f.data))):]
		if length >= 0 && length < int64(len(data)) {
			data = data[:length]
		}
		r = io.NopCloser(bytes.NewReader(bytes.Clone(data)))
		return nil
	})
	return info, r, err
}

// Write implements guestapi.Guest.
func (g *guest) Write(
	ctx context.Context,
	p string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (info guestapi.FileInfo, err error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return info, err
	}
	if opt.Size >= 0 && int64(len(data)) != opt.Size {
		return info, fmt.Errorf("%s: %d bytes came, %d were announced: %w", p, len(data), opt.Size, guestapi.ErrInvalid)
	}
	err = g.withPath(ctx, p, func(p string, f file, ok bool) error {
		if ok && f.dir {
			return fmt.Errorf("%s: %w", p, guestapi.ErrIsDir)
		}
		if err := g.writable(p); err != nil {
			return err
		}
		mode := cmp.Or(opt.Mode, f.mode, 0o644)
		g.files[p] = file{data: data, mode: mode, at: time.Now(), owner: f.owner}
		info = g.info(p, g.files[p])
		return nil
	})
	return info, err
}

// Move implements guestapi.Guest.
func (g *guest) Move(ctx context.Context, from, to, user string) (info guestapi.FileInfo, err error) {
	if to, err = g.resolve(to); err != nil {
		return info, err
	}
	err = g.withPath(ctx, from, func(p string, f file, ok bool) error {
		if !ok {
			return missing(p)
		}
		if err := errors.Join(g.writable(p), g.writable(to)); err != nil {
			return err
		}
		for _, k := range slices.Collect(maps.Keys(g.files)) {
			if k == p || strings.HasPrefix(k, p+"/") {
				g.files[to+strings.TrimPrefix(k, p)] = g.files[k]
				delete(g.files, k)
			}
		}
		moved, _ := g.lookup(to)
		info = g.info(to, moved)
		return nil
	})
	return info, err
}

// Remove implements guestapi.Guest.
func (g *guest) Remove(ctx context.Context, p, user string, recursive bool) error {
	return g.withPath(ctx, p, func(p string, f file, ok bool) error {
		if !ok {
			return missing(p)
		}
		if err := g.writable(p); err != nil {
			return err
		}
		var doomed []string
		for k := range g.files {
			if k == p || strings.HasPrefix(k, p+"/") {
				doomed = append(doomed, k)
			}
		}
		if len(doomed) > 1 && !recursive {
			return fmt.Errorf("%s is not empty: %w", p, guestapi.ErrInvalid)
		}
		for _, k := range doomed {
			delete(g.files, k)
		}
		return nil
	})
}

// MakeDir implements guestapi.Guest.
func (g *guest) MakeDir(ctx context.Context, p, user string) (info guestapi.FileInfo, err error) {
	err = g.withPath(ctx, p, func(p string, f file, ok bool) error {
		if ok {
			return fmt.Errorf("%s: %w", p, guestapi.ErrExists)
		}
		if above, ok := g.lookup(path.Dir(p)); ok && !above.dir {
			return fmt.Errorf("%s: %w", path.Dir(p), guestapi.ErrNotDir)
		}
		if err := g.writable(p); err != nil {
			return err
		}
		g.files[p] = file{dir: true, mode: 0o755, at: time.Now()}
		info = g.info(p, g.files[p])
		return nil
	})
	return info, err
}

// Watch implements guestapi.Guest: nothing is ever seen.
func (g *guest) Watch(ctx context.Context, p, user string, recursive bool) (guestapi.Watcher, error) {
	return watcher{g}, g.alive(ctx)
}

type watcher struct{ g *guest }

func (w watcher) Next(ctx context.Context) (guestapi.FileEvent, error) {
	select {
	case <-ctx.Done():
		return guestapi.FileEvent{}, context.Cause(ctx)
	case <-w.g.lost:
		return guestapi.FileEvent{}, guestapi.ErrLost
	}
}

func (watcher) Close() error { return nil }

// Ports implements guestapi.Guest: an echo server listens on port 7.
func (g *guest) Ports(ctx context.Context) ([]guestapi.Port, error) {
	return []guestapi.Port{{Port: 7, Address: "127.0.0.1", PID: 99, Program: "echo"}}, g.alive(ctx)
}

// DialPort implements guestapi.Guest.
func (g *guest) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	if err := g.alive(ctx); err != nil {
		return nil, err
	}
	g.pmu.Lock()
	serve, ok := g.ports[port]
	g.pmu.Unlock()
	if !ok {
		return nil, fmt.Errorf("port %d: %w", port, guestapi.ErrRefused)
	}
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		select {
		case <-g.lost: // the connection ends with the generation
			_ = theirs.Close()
		case <-served:
		}
	}()
	go func() {
		defer close(served)
		defer theirs.Close()
		serve(theirs)
	}()
	return ours, nil
}

// DialSocket implements guestapi.Guest: servers are those of Host.ServeSocket.
func (g *guest) DialSocket(ctx context.Context, path string) (net.Conn, error) {
	if err := g.alive(ctx); err != nil {
		return nil, err
	}
	serve, ok := g.sockets[path]
	if !ok {
		return nil, fmt.Errorf("socket %s: %w", path, guestapi.ErrRefused)
	}
	ours, theirs := net.Pipe()
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		select {
		case <-g.lost: // the connection ends with the generation
			_ = theirs.Close()
		case <-running.Done():
		}
	}()
	go func() {
		defer end()
		defer theirs.Close()
		serve(running, g, theirs)
	}()
	return ours, nil
}

// Freeze implements guestapi.Guest.
func (g *guest) Freeze(ctx context.Context, sync bool) error { return g.alive(ctx) }

// Thaw implements guestapi.Guest.
func (g *guest) Thaw(ctx context.Context) error { return g.alive(ctx) }

// Stats implements guestapi.Guest.
func (g *guest) Stats(ctx context.Context) (guestapi.Stats, error) {
	return guestapi.Stats{
			MemTotal:     256 << 20,
			MemAvailable: 200 << 20,
			MemCached:    10 << 20,
			DiskTotal:    2 << 30,
			DiskUsed:     1 << 30,
			CPUs:         1,
			Load1:        0.1,
			Uptime:       time.Minute,
			Processes:    3,
			Time:         time.Now(),
		}, g.alive(
			ctx,
		)
}
