package remote_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/vmm"
)

// fakeExporter is a CheckpointExporter that keeps an image's bundle in a file of a directory, as a driver does.
type fakeExporter struct {
	kind    string // of host
	origins int    // how often the content of the root was read
	near    string // LocalBase of the last import
	err     error  // of the last import
	before  func() // called before the content is read; may be nil
}

// withExporter gives a host an exporter of bundles for hosts of that kind.
func (h *host) withExporter(kind string) *fakeExporter {
	l := &fakeExporter{kind: kind}
	h.repo.Exporter = l
	return l
}

const bundlePath = "monitor/memo"

func (l *fakeExporter) ExportCheckpoint(_ context.Context, image vmm.Image) (*vmm.Checkpoint, error) {
	f, err := os.Open(filepath.Join(image.Dir, bundlePath))
	if err != nil {
		return nil, nil
	}
	return &vmm.Checkpoint{Description: []byte(l.kind), Content: f}, nil
}

func (l *fakeExporter) ImportCheckpoint(ctx context.Context, image vmm.Image, from vmm.CheckpointSource) error {
	l.near, l.err = from.LocalBase, l.importBundle(ctx, image, from)
	return l.err
}

func (l *fakeExporter) importBundle(ctx context.Context, image vmm.Image, from vmm.CheckpointSource) error {
	if string(from.Description) != l.kind {
		return &vmm.MismatchError{Field: "kind", Image: string(from.Description), Host: l.kind}
	}
	path := filepath.Join(image.Dir, bundlePath)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if l.before != nil {
		l.before()
	}
	if from.LocalBase == "" {
		l.origins++
		if err := write(ctx, true, path+".origin", from); err != nil {
			return err
		}
	}
	return write(ctx, false, path, from)
}

func write(ctx context.Context, origin bool, path string, from vmm.CheckpointSource) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	bytes, err := from.Fetch(ctx, origin, f)
	if err == nil {
		err = f.Truncate(bytes)
	}
	return errors.Join(err, f.Close())
}

// writeBundle writes the checkpoint bundle of a snapshot's image.
func (h *host) writeBundle(name string, content []byte) {
	h.t.Helper()
	path := filepath.Join(h.dir, filepath.FromSlash(name), "image", bundlePath)
	h.must(errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o400)))
}

// A checkpoint bundle travels with its snapshot to hosts of the same kind, with the root of the ancestry
// where that is missing. After any failure the snapshot arrives without it.
func TestCheckpointTravelsWithSnapshot(t *testing.T) {
	objects := blobtest.NewMemory()
	a := newHost(t, objects)
	a.withExporter("k")
	template, memory := templateAndMemories()
	a.commit(template, memory[0])
	a.commit(userSnapshot("one", 1), memory[1])
	a.commit(userSnapshot("plain", 2), memory[2])
	whole, over := blobtest.Content(77, 5<<20), blobtest.Content(78, 300_000)
	a.writeBundle("templates/base/g1", whole)
	a.writeBundle("snapshots/one", over)
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
			l := b.withExporter(c.kind)
			if c.template {
				b.commit(template, memory[0])
			}
			snap, _, err := b.repo.Pull(t.Context(), "ws", "one", "snapshots/one", nil)
			b.must(err)
			if l.origins != c.origins || (l.near != "") != c.template {
				t.Errorf("the root was read %d times and LocalBase was %q, want otherwise", l.origins, l.near)
			}
			got, err := os.ReadFile(filepath.Join(snap.Image().Dir, bundlePath))
			if fits := c.kind == "k"; fits != (err == nil) || fits && !bytes.Equal(got, over) {
				t.Errorf("bundle = %d bytes, %v; import: %v", len(got), err, l.err)
			}
			if c.origins > 0 {
				if got, err := os.ReadFile(filepath.Join(snap.Image().Dir, bundlePath+".origin")); err != nil ||
					!bytes.Equal(got, whole) {
					t.Errorf("root's bundle = %d bytes, %v; want the pushed content", len(got), err)
				}
			}
			files, err := snap.Files()
			if b.must(err); len(files) != 2 {
				t.Errorf("files of the pulled snapshot = %v, want 2", files)
			}
		})
	}
	t.Run("nothing_learnt", func(t *testing.T) {
		b := newHost(t, objects)
		l := b.withExporter("k")
		if _, _, err := b.repo.Pull(t.Context(), "ws", "plain", "snapshots/plain", nil); err != nil || l.err != nil ||
			l.origins > 0 {
			t.Errorf("bundle: got %v, import: %v; want none", err, l.err)
		}
	})
	t.Run("another_workspace", func(t *testing.T) {
		b := newHost(t, objects)
		l := b.withExporter("k")
		_, _, err := b.repo.Pull(t.Context(), "other", "one", "snapshots/one", nil)
		if !errors.Is(err, chunkstore.ErrNotFound) || l.origins > 0 {
			t.Errorf("pull of a deleted snapshot: got %v, want ErrNotFound", err)
		}
	})
}

// A bundle that is missing or damaged does not affect the snapshot.
func TestPullWithoutUsableCheckpoint(t *testing.T) {
	for name, want := range map[string]struct {
		fault blobtest.Fault
		err   string
	}{
		"unreachable": {blobtest.Fault{Err: errors.New("gone away")}, "gone away"},
		"corrupt": {blobtest.Fault{Corrupt: func(data []byte) []byte {
			return make([]byte, len(data))
		}}, "damaged"},
		"short": {blobtest.Fault{Short: 100}, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			faults := blobtest.NewFaulty(blobtest.NewMemory(), nil)
			a := newHost(t, faults)
			a.withExporter("k")
			template, memory := templateAndMemories()
			a.commit(template, memory[0])
			a.commit(userSnapshot("one", 1), memory[1])
			a.writeBundle("snapshots/one", blobtest.Content(78, 5<<20))
			a.push("one")
			b := newHost(t, faults)
			l := b.withExporter("k")
			b.commit(template, memory[0])
			from, err := b.repo.OpenWithLocalBase(t.Context(), "ws", "one")
			b.must(err)
			b.must(from.Reader.Close())
			var once bool
			l.before = func() {
				once = true
				faults.SetFaults(func(c blobtest.Call) blobtest.Fault { return want.fault })
			}
			image := vmm.Image{Dir: t.TempDir()}
			b.repo.ImportCheckpoint(t.Context(), from, image)
			if !once || l.err == nil || !strings.Contains(l.err.Error(), want.err) {
				t.Errorf("import: got %v, want the error of the case", l.err)
			}
			faults.SetFaults(func(blobtest.Call) blobtest.Fault { return blobtest.Fault{} })
			l.before = nil
			if _, _, err := b.repo.Pull(t.Context(), "ws", "one", "snapshots/one", nil); err != nil || l.err != nil {
				t.Errorf("Pull: %v, import: %v; want no errors", err, l.err)
			}
		})
	}
}
