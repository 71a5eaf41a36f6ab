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

// smallBytes is the largest size of the files that are downloaded before a snapshot may be used: device
// states are tens of KiB. The content of such files is checked before every restore.
const smallBytes = 1 << 20

// traceName is the name of the trace in a snapshot's directory.
const traceName = "trace"

// ImportParams are the parameters of Import. All but Prefetch and AddFiles are required.
type ImportParams struct {
	// Ref is the name of the new snapshot on this host.
	Ref snapshot.Ref
	// Snapshot is the description that the snapshot's own host wrote.
	Snapshot snapshot.Snapshot
	// Origin is the value that Config.OpenSource later finds the source by.
	Origin []byte
	// Source holds the content: the files of Snapshot.Manifest, and the disks under the names of
	// snapshot.DiskFiles. Import takes it over, also when it fails.
	Source chunkstore.Source
	// Prefetch is what LoadPrefetch began to load for this snapshot. Import takes it over, also when it
	// fails. If it is nil, Import loads the trace itself.
	Prefetch *PrefetchLoader
	// AddFiles, unless it is nil, writes further files into the image's directory. It runs while the small
	// files are downloaded, and no machine starts before it returns. Its context ends when the download fails.
	AddFiles func(ctx context.Context, dir string)
}

// Import makes a snapshot of the object store a remote-backed snapshot of this host.
//
// It downloads the small files and hydrates the others in the background. It returns snapshot.ErrExists if
// the name is taken. After an error nothing is left.
func (m *Manager) Import(ctx context.Context, in ImportParams) (_ snapshot.Snapshot, err error) {
	prefetch, source := in.Prefetch, in.Source
	if prefetch == nil {
		prefetch = m.LoadPrefetch(m.traceLoader(in.Origin, ""))
	}
	adopted := false
	defer func() {
		if !adopted {
			prefetch.Close()
			err = errors.Join(err, closeSource(source))
		}
	}()
	if len(in.Origin) == 0 {
		return snapshot.Snapshot{}, fmt.Errorf("import snapshot %s: origin is missing", in.Ref)
	}
	memory, err := memoryName(in.Snapshot.Manifest)
	if err != nil {
		return snapshot.Snapshot{}, fmt.Errorf("import snapshot %s: %w", in.Ref, err)
	}
	size, _ := source.Size(memory)
	prefetch.setMemory(memory, size)
	draft, err := m.cfg.Store.Draft()
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	defer func() { err = errors.Join(err, draft.Discard()) }()
	adding, stop := context.WithCancel(ctx)
	defer stop()
	var added sync.WaitGroup
	added.Go(func() {
		if in.AddFiles != nil {
			in.AddFiles(adding, draft.ImageDir())
		}
	})
	if err = createFiles(ctx, draft, in.Snapshot, source); err != nil {
		stop()
	}
	added.Wait()
	if err != nil {
		return snapshot.Snapshot{}, fmt.Errorf("import snapshot %s: %w", in.Ref, err)
	}
	snap := in.Snapshot
	snap.Ref, snap.Anonymous = in.Ref, false
	snap, err = draft.Commit(snap.WithOrigin(in.Origin))
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	defer func() { err = errors.Join(err, m.cfg.Store.Release(in.Ref)) }()
	err = snapshot.Check(snap)
	if err == nil {
		adopted = true
		_, err = m.adopt(snap, source, prefetch)
	}
	if err != nil {
		return snapshot.Snapshot{}, errors.Join(
			fmt.Errorf("import snapshot %s: %w", in.Ref, err),
			m.cfg.Store.Delete(in.Ref),
		)
	}
	return snap, nil
}

// createFiles makes the files of a draft: small ones with their content, large ones with their size.
func createFiles(ctx context.Context, draft *snapshot.Draft, snap snapshot.Snapshot, source chunkstore.Source) error {
	var small []chunkstore.Range
	for _, f := range snap.Manifest.Files {
		if f.Name == "" || filepath.Base(f.Name) != f.Name {
			return fmt.Errorf("invalid file name %q", f.Name)
		}
		size, ok := source.Size(f.Name)
		if !ok || size != f.Bytes {
			return fmt.Errorf("%s has %d bytes in the object store, want %d", f.Name, size, f.Bytes)
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
		return errors.New("a snapshot without a disk cannot be imported")
	}
	if err := snapshot.CheckDataDisks(snap.Data); err != nil {
		return err
	}
	sizes := snap.DiskBytes()
	for i, path := range draft.DiskPaths(snap.Data) {
		size, ok := source.Size(filepath.Base(path))
		if !ok || size != sizes[i] {
			return fmt.Errorf(
				"%s has %d bytes in the object store, want %d MiB",
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

// memoryName returns the name of the memory among an image's files. Its size includes the memory that can be
// added.
func memoryName(m vmm.Manifest) (string, error) {
	size := int64(max(m.MemoryMiB, m.MaxMemoryMiB)) << 20
	for _, f := range m.Files {
		if f.Bytes == size && f.Bytes > smallBytes {
			return f.Name, nil
		}
	}
	return "", fmt.Errorf("the image has no memory of %d MiB", size>>20)
}
