package fake

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// lookup returns the file at a path. The caller holds mu.
func (w *guestState) lookup(p string) (*file, error) {
	f, ok := w.Files[p]
	if !ok {
		return nil, fmt.Errorf("%s: %w", p, guestapi.ErrNotFound)
	}
	return f, nil
}

// put makes or changes a file and its parents. The caller holds mu.
func (w *guestState) put(p string, data []byte, mode uint32, user string) error {
	if err := w.parents(p, user); err != nil {
		return err
	}
	old, ok := w.Files[p]
	if ok && old.Dir {
		return fmt.Errorf("%s: %w", p, guestapi.ErrIsDir)
	}
	if mode == 0 {
		mode = 0o644
		if ok {
			mode = old.Mode
		}
	}
	w.Files[p] = &file{Data: data, Mode: mode, User: user, Modified: w.now()}
	return nil
}

func (w *guestState) parents(p, user string) error {
	for d := path.Dir(p); ; d = path.Dir(d) {
		f, ok := w.Files[d]
		if ok && !f.Dir {
			return fmt.Errorf("%s: %w", d, guestapi.ErrNotDir)
		}
		if ok {
			return nil
		}
		w.Files[d] = &file{Dir: true, Mode: 0o755, User: user, Modified: w.now()}
	}
}

// below returns the paths below p, sorted. The caller holds mu.
func (w *guestState) below(p string) []string {
	prefix := strings.TrimSuffix(p, "/") + "/"
	var all []string
	for q := range w.Files {
		if strings.HasPrefix(q, prefix) && q != p {
			all = append(all, q)
		}
	}
	slices.Sort(all)
	return all
}

func info(p string, f *file) guestapi.FileInfo {
	i := guestapi.FileInfo{
		Path: p, Name: path.Base(p), Kind: guestapi.KindFile, Size: int64(len(f.Data)), Mode: f.Mode,
		User: f.User, Group: f.User, Modified: f.Modified,
	}
	if f.Dir {
		i.Kind = guestapi.KindDir
	}
	if f.User != "root" {
		i.UID, i.GID = 1000, 1000
	}
	return i
}

func (w *guestState) owner(user string) string {
	if user == "" {
		user = w.User
	}
	if user == "" {
		return "root"
	}
	return user
}

// Stat implements guestapi.Guest.
func (w *guestState) Stat(ctx context.Context, p, user string) (out guestapi.FileInfo, _ error) {
	return out, w.do(ctx, func() error {
		p = w.abs(p, user)
		f, err := w.lookup(p)
		if err == nil {
			out = info(p, f)
		}
		return err
	})
}

// List implements guestapi.Guest.
func (w *guestState) List(ctx context.Context, p, user string, depth int) (out []guestapi.FileInfo, _ error) {
	err := w.do(ctx, func() error {
		p = w.abs(p, user)
		f, err := w.lookup(p)
		if err != nil {
			return err
		}
		if !f.Dir {
			return fmt.Errorf("%s: %w", p, guestapi.ErrNotDir)
		}
		for _, q := range w.below(p) {
			rest := strings.TrimPrefix(q, strings.TrimSuffix(p, "/")+"/")
			if strings.Count(rest, "/") < max(1, depth) {
				out = append(out, info(q, w.Files[q]))
			}
		}
		return nil
	})
	return out, err
}

// Read implements guestapi.Guest.
func (w *guestState) Read(
	ctx context.Context,
	p, user string,
	offset, length int64,
) (out guestapi.FileInfo, r io.ReadCloser, _ error) {
	err := w.do(ctx, func() error {
		p = w.abs(p, user)
		f, err := w.lookup(p)
		if err != nil {
			return err
		}
		if f.Dir {
			return fmt.Errorf("%s: %w", p, guestapi.ErrIsDir)
		}
		out = info(p, f)
		data := f.Data[min(max(offset, 0), int64(len(f.Data))):]
		if length >= 0 && length < int64(len(data)) {
			data = data[:length]
		}
		r = io.NopCloser(bytes.NewReader(data))
		return nil
	})
	return out, r, err
}

// Write implements guestapi.Guest.
func (w *guestState) Write(
	ctx context.Context,
	p string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (out guestapi.FileInfo, _ error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return out, err
	}
	err = w.do(ctx, func() error {
		p = w.abs(p, opt.User)
		if err := w.put(p, data, opt.Mode, w.owner(opt.User)); err != nil {
			return err
		}
		out = info(p, w.Files[p])
		w.cond.Broadcast()
		return nil
	})
	return out, err
}

// Move implements guestapi.Guest.
func (w *guestState) Move(ctx context.Context, from, to, user string) (out guestapi.FileInfo, _ error) {
	err := w.do(ctx, func() error {
		from, to = w.abs(from, user), w.abs(to, user)
		f, err := w.lookup(from)
		if err != nil {
			return err
		}
		if err := w.parents(to, w.owner(user)); err != nil {
			return err
		}
		for _, q := range w.below(from) {
			w.Files[to+strings.TrimPrefix(q, from)] = w.Files[q]
			delete(w.Files, q)
		}
		delete(w.Files, from)
		w.Files[to] = f
		out = info(to, f)
		w.cond.Broadcast()
		return nil
	})
	return out, err
}

// Remove implements guestapi.Guest.
func (w *guestState) Remove(ctx context.Context, p, user string, recursive bool) error {
	return w.do(ctx, func() error { return w.remove(w.abs(p, user), recursive) })
}

func (w *guestState) remove(p string, recursive bool) error {
	if _, err := w.lookup(p); err != nil {
		return err
	}
	below := w.below(p)
	if len(below) > 0 && !recursive {
		return fmt.Errorf("%s: %w: directory not empty", p, guestapi.ErrInvalid)
	}
	for _, q := range append(below, p) {
		delete(w.Files, q)
	}
	w.cond.Broadcast()
	return nil
}

// MakeDir implements guestapi.Guest.
func (w *guestState) MakeDir(ctx context.Context, p, user string) (out guestapi.FileInfo, _ error) {
	err := w.do(ctx, func() error {
		p = w.abs(p, user)
		if f, ok := w.Files[p]; ok {
			out = info(p, f)
			return fmt.Errorf("%s: %w", p, guestapi.ErrExists)
		}
		if err := w.parents(path.Join(p, "x"), w.owner(user)); err != nil {
			return err
		}
		out = info(p, w.Files[p])
		w.cond.Broadcast()
		return nil
	})
	return out, err
}

// Watch reports changes by comparing the files with those at the last call.
func (w *guestState) Watch(ctx context.Context, p, user string, recursive bool) (guestapi.Watcher, error) {
	v := &watcher{w: w, recursive: recursive, done: make(chan struct{})}
	err := w.do(ctx, func() error {
		v.root = w.abs(p, user)
		f, err := w.lookup(v.root)
		if err != nil {
			return err
		}
		if !f.Dir {
			return fmt.Errorf("%s: %w", v.root, guestapi.ErrNotDir)
		}
		v.seen = v.look()
		return nil
	})
	return v, err
}

type watcher struct {
	w         *guestState
	root      string
	recursive bool
	seen      map[string]*file
	done      chan struct{}
}

// look returns the files that are watched. The caller holds mu.
func (v *watcher) look() map[string]*file {
	all := map[string]*file{}
	for _, q := range v.w.below(v.root) {
		rest := strings.TrimPrefix(q, strings.TrimSuffix(v.root, "/")+"/")
		if v.recursive || !strings.Contains(rest, "/") {
			all[rest] = v.w.Files[q]
		}
	}
	return all
}

// change returns the next change. The caller holds mu.
func (v *watcher) change() (guestapi.FileEvent, bool) {
	now := v.look()
	for _, q := range slices.Sorted(mapKeys(now)) {
		old, ok := v.seen[q]
		if !ok || old != now[q] {
			v.seen[q] = now[q]
			if ok {
				return guestapi.FileEvent{Op: guestapi.OpWrite, Path: q}, true
			}
			return guestapi.FileEvent{Op: guestapi.OpCreate, Path: q}, true
		}
	}
	for _, q := range slices.Sorted(mapKeys(v.seen)) {
		if _, ok := now[q]; !ok {
			delete(v.seen, q)
			return guestapi.FileEvent{Op: guestapi.OpRemove, Path: q}, true
		}
	}
	return guestapi.FileEvent{}, false
}

// Next implements guestapi.Watcher.
func (v *watcher) Next(ctx context.Context) (out guestapi.FileEvent, _ error) {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	var closed bool
	err := v.w.wait(ctx, func() bool {
		select {
		case <-v.done:
			closed = true
			return true
		default:
		}
		var ok bool
		out, ok = v.change()
		return ok
	})
	if closed {
		return out, io.EOF
	}
	return out, err
}

// Close implements guestapi.Watcher.
func (v *watcher) Close() error {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	select {
	case <-v.done:
	default:
		close(v.done)
		v.w.cond.Broadcast()
	}
	return nil
}
