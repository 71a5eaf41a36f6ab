package lazy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// smallBytes is up to how large a file is fetched before a snapshot may be used: device states are tens of
// KiB. Such files are checked by their content before every restore.
const smallBytes = 1 << 20

// traceName is where a snapshot's directory keeps the trace.
const traceName = "trace"

// Import makes snap, as its host described it, a partial snapshot of this host under ref, and begins to bring
// its content from source, which names the image's files as snap.Manifest does and the disks as
// snapshot.DiskFiles. origin is what Config.Open finds source by. Source is taken over. Add, unless it is nil, puts into
// the directory of the image what else belongs there, while the small files come and before a machine may start; its
// context ends when they do not come. Soon is what was begun to be learnt of the snapshot, and is taken over too; nil: it
// begins here. ErrExists: ref is taken. After an error nothing is left.
func (m *Manager) Import(
	ctx context.Context,
	ref snapshot.Ref,
	snap snapshot.Snapshot,
	origin []byte,
	source chunkstore.Source,
	soon *PrefetchLoader,
	add func(ctx context.Context, dir string),
) (_ snapshot.Snapshot, err error) {
	if soon == nil {
		soon = m.LoadPrefetch(m.traceLoader(origin, ""))
	}
	adopted := false
	defer func() {
		if !adopted {
			soon.Close()
			err = errors.Join(err, closeSource(source))
		}
	}()
	if len(origin) == 0 {
		return snapshot.Snapshot{}, fmt.Errorf("stream %s: it has no origin", ref)
	}
	memory, err := memoryName(snap.Manifest)
	if err != nil {
		return snapshot.Snapshot{}, fmt.Errorf("stream %s: %w", ref, err)
	}
	size, _ := source.Size(memory)
	soon.setMemory(memory, size)
	draft, err := m.cfg.Store.Draft()
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	defer func() { err = errors.Join(err, draft.Discard()) }()
	adding, stop := context.WithCancel(ctx)
	defer stop()
	var added sync.WaitGroup
	added.Go(func() {
		if add != nil {
			add(adding, draft.ImageDir())
		}
	})
	if err = createFiles(ctx, draft, snap, source); err != nil {
		stop()
	}
	added.Wait()
	if err != nil {
		return snapshot.Snapshot{}, fmt.Errorf("stream %s: %w", ref, err)
	}
	snap.Ref, snap.Anonymous = ref, false
	snap, err = draft.Commit(snap.WithOrigin(origin))
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	defer func() { err = errors.Join(err, m.cfg.Store.Release(ref)) }()
	err = snapshot.Check(snap)
	if err == nil {
		adopted = true
		_, err = m.adopt(snap, source, soon)
	}
	if err != nil {
		return snapshot.Snapshot{}, errors.Join(fmt.Errorf("stream %s: %w", ref, err), m.cfg.Store.Delete(ref))
	}
	return snap, nil
}

// createFiles makes a draft's files: small ones with their content, large ones with their size.
func createFiles(ctx context.Context, draft *snapshot.Draft, snap snapshot.Snapshot, source chunkstore.Source) error {
	var small []chunkstore.Range
	for _, f := range snap.Manifest.Files {
		if f.Name == "" || filepath.Base(f.Name) != f.Name {
			return fmt.Errorf("file name %q", f.Name)
		}
		size, ok := source.Size(f.Name)
		if !ok || size != f.Bytes {
			return fmt.Errorf("%s has %d bytes in the object store, and should have %d", f.Name, size, f.Bytes)
		}
		if f.Bytes > smallBytes {
			if err := createSparse(filepath.Join(draft.ImageDir(), f.Name), f.Bytes, 0o444); err != nil {
				return err
			}
			continue
		}
		small = append(small, chunkstore.Range{File: f.Name, Length: f.Bytes})
	}
	if err := source.Prefetch(ctx, small); err != nil {
		return err
	}
	for _, r := range small {
		data := make([]byte, r.Length)
		if err := source.ReadAt(ctx, r.File, data, 0); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(draft.ImageDir(), r.File), data, 0o444); err != nil {
			return err
		}
	}
	if !snap.Disk {
		return errors.New("a snapshot without a disk is not streamed")
	}
	if err := snapshot.CheckDataDisks(snap.Data); err != nil {
		return err
	}
	sizes := snap.DiskBytes()
	for i, path := range draft.DiskPaths(snap.Data) {
		size, ok := source.Size(filepath.Base(path))
		if !ok || size != sizes[i] {
			return fmt.Errorf(
				"its %s has %d bytes in the object store, and should have %d MiB",
				filepath.Base(path),
				size,
				sizes[i]>>20,
			)
		}
		if err := createSparse(path, size, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// createSparse makes a file that is one hole.
func createSparse(path string, bytes int64, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(bytes), f.Chmod(mode), f.Close())
}

// memoryName is which of an image's files is the memory. It has room for what a machine may be given beyond.
func memoryName(m vmm.Manifest) (string, error) {
	size := int64(max(m.MemoryMiB, m.MaxMemoryMiB)) << 20
	for _, f := range m.Files {
		if f.Bytes == size && f.Bytes > smallBytes {
			return f.Name, nil
		}
	}
	return "", fmt.Errorf("the image has no memory of %d MiB", size>>20)
}
