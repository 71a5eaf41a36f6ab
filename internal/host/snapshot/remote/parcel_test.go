package remote_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/blob/blobtest"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/vmm"
)

// learnt is a carrier whose images have what was learnt in a file of a directory, as a driver's do.
type learnt struct {
	kind    string // of host
	origins int    // how often the content of the origin was asked for
	near    string // of the last delivery
	err     error  // of the last that was unpacked
	before  func() // the content is asked for; may be nil
}

// carry gives a host a carrier.
func (h *host) carry(kind string) *learnt {
	l := &learnt{kind: kind}
	h.depot.Carrier = l
	return l
}

const memo = "monitor/memo"

func (l *learnt) Pack(_ context.Context, image vmm.Image) (*vmm.Parcel, error) {
	f, err := os.Open(filepath.Join(image.Dir, memo))
	if err != nil {
		return nil, nil
	}
	return &vmm.Parcel{About: []byte(l.kind), Content: f}, nil
}

func (l *learnt) Unpack(ctx context.Context, image vmm.Image, from vmm.Delivery) error {
	l.near, l.err = from.Near, l.unpack(ctx, image, from)
	return l.err
}

func (l *learnt) unpack(ctx context.Context, image vmm.Image, from vmm.Delivery) error {
	if string(from.About) != l.kind {
		return &vmm.MismatchError{Field: "kind", Image: string(from.About), Host: l.kind}
	}
	path := filepath.Join(image.Dir, memo)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if l.before != nil {
		l.before()
	}
	if from.Near == "" {
		l.origins++
		if err := write(ctx, true, path+".origin", from); err != nil {
			return err
		}
	}
	return write(ctx, false, path, from)
}

func write(ctx context.Context, origin bool, path string, from vmm.Delivery) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	bytes, err := from.Bring(ctx, origin, f)
	if err == nil {
		err = f.Truncate(bytes)
	}
	return errors.Join(err, f.Close())
}

// memory of what a snapshot's monitor learnt.
func (h *host) memorize(name string, content []byte) {
	h.t.Helper()
	path := filepath.Join(h.dir, filepath.FromSlash(name), "image", memo)
	h.must(errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o400)))
}

// What a monitor has learnt goes along with a snapshot to hosts of its kind, with what its line began with where that
// is not there; and a snapshot comes without it wherever there is any trouble with it.
func TestParcel(t *testing.T) {
	objects := blobtest.Memory()
	a := newHost(t, objects)
	a.carry("k")
	template, memory := grown()
	a.keep(template, memory[0])
	a.keep(taken("one", 1), memory[1])
	a.keep(taken("plain", 2), memory[2])
	whole, over := blobtest.Content(77, 5<<20), blobtest.Content(78, 300_000)
	a.memorize("templates/base/g1", whole)
	a.memorize("snapshots/one", over)
	a.push("one")
	a.push("plain")
	for name, c := range map[string]struct {
		kind     string
		template bool
		origins  int
	}{
		"no_template": {"k", false, 1}, "template": {"k", true, 0}, "another_kind": {"other", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHost(t, objects)
			l := b.carry(c.kind)
			if c.template {
				b.keep(template, memory[0])
			}
			snap, _, err := b.depot.Pull(t.Context(), "ws", "one", "snapshots/one", nil)
			b.must(err)
			if l.origins != c.origins || (l.near != "") != c.template {
				t.Errorf("the origin was brought %d times, near was %q", l.origins, l.near)
			}
			got, err := os.ReadFile(filepath.Join(snap.Image().Dir, memo))
			if fits := c.kind == "k"; fits != (err == nil) || fits && !bytes.Equal(got, over) {
				t.Errorf("got %d bytes, %v, unpacked with %v", len(got), err, l.err)
			}
			if c.origins > 0 {
				if got, err := os.ReadFile(filepath.Join(snap.Image().Dir, memo+".origin")); err != nil ||
					!bytes.Equal(got, whole) {
					t.Errorf("got %d bytes of the origin, %v", len(got), err)
				}
			}
			files, err := snap.Files()
			if b.must(err); len(files) != 2 {
				t.Errorf("the snapshot has the files %v", files)
			}
		})
	}
	t.Run("nothing_learnt", func(t *testing.T) {
		b := newHost(t, objects)
		l := b.carry("k")
		if _, _, err := b.depot.Pull(t.Context(), "ws", "plain", "snapshots/plain", nil); err != nil || l.err != nil ||
			l.origins > 0 {
			t.Errorf("got %v, unpacked with %v", err, l.err)
		}
	})
	t.Run("another_workspace", func(t *testing.T) {
		b := newHost(t, objects)
		l := b.carry("k")
		_, _, err := b.depot.Pull(t.Context(), "other", "one", "snapshots/one", nil)
		if !errors.Is(err, chunkstore.ErrNotFound) || l.origins > 0 {
			t.Errorf("got %v", err)
		}
	})
}

// A parcel that does not come, or is not what was pushed, costs the snapshot nothing.
func TestParcelLost(t *testing.T) {
	for name, want := range map[string]struct {
		fault blobtest.Fault
		err   string
	}{
		"dead":  {blobtest.Fault{Err: errors.New("gone away")}, "gone away"},
		"lying": {blobtest.Fault{Lie: func(data []byte) []byte { return make([]byte, len(data)) }}, "damaged"},
		"short": {blobtest.Fault{Short: 100}, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			faults := blobtest.Break(blobtest.Memory(), nil)
			a := newHost(t, faults)
			a.carry("k")
			template, memory := grown()
			a.keep(template, memory[0])
			a.keep(taken("one", 1), memory[1])
			a.memorize("snapshots/one", blobtest.Content(78, 5<<20))
			a.push("one")
			b := newHost(t, faults)
			l := b.carry("k")
			b.keep(template, memory[0])
			from, err := b.depot.Near(t.Context(), "ws", "one")
			b.must(err)
			b.must(from.Reader.Close())
			var once bool
			l.before = func() {
				once = true
				faults.Decide(func(c blobtest.Call) blobtest.Fault { return want.fault })
			}
			image := vmm.Image{Dir: t.TempDir()}
			b.depot.Unpack(t.Context(), from, image)
			if !once || l.err == nil || !strings.Contains(l.err.Error(), want.err) {
				t.Errorf("unpacked with %v", l.err)
			}
			faults.Decide(func(blobtest.Call) blobtest.Fault { return blobtest.Fault{} })
			l.before = nil
			if _, _, err := b.depot.Pull(t.Context(), "ws", "one", "snapshots/one", nil); err != nil || l.err != nil {
				t.Errorf("pull: %v, unpacked with %v", err, l.err)
			}
		})
	}
}
