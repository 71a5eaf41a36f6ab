package bake

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// scrubScript runs in the guest of a recipe, as root, after the check and before the warm-up. Pages that the check
// left in memory are useless to a sandbox, and free memory of zeros takes no space on disk.
const scrubScript = `sync
echo 3 > /proc/sys/vm/drop_caches
free=$(sed -n 's/^MemFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)
dir=$(mktemp -d)
mount -t tmpfs -o size=100% tmpfs "$dir"
dd if=/dev/zero of="$dir/zeros" bs=1M count=$((free / 1024 - 48)) 2>/dev/null || true
umount "$dir"
rmdir "$dir"`

// scrubMemory runs scrubScript if the recipe asks for it. Published templates may lack the programs it needs.
func (b *Baker) scrubMemory(ctx context.Context, j *job, id hostapi.MachineID) error {
	if j.recipe.spec == nil && j.recipe.Scrub {
		if err := b.exec(ctx, j, id, scrubScript, "root"); err != nil {
			return fmt.Errorf("scrub memory: %w", err)
		}
	}
	return b.stepDone("scrub")
}

// apparentBytes returns the size of a template's files in bytes, holes and shared blocks included.
func apparentBytes(s snapshot.Snapshot) int64 {
	sum := int64(0)
	for _, n := range s.DiskBytes() {
		sum += n
	}
	for _, f := range s.Manifest.Files {
		sum += f.Bytes
	}
	return sum
}

// compact makes a draft take little space while clones of it stay cheap: its disks in few extents, its memory
// without pages of zeros, and long runs shared with the other templates.
func (b *Baker) compact(ctx context.Context, j *job, d *snapshot.Draft) error {
	own, err := d.Disks()
	if err != nil {
		return err
	}
	if s := j.recipe.spec; s == nil || s.Image != "" { // other disks keep sharing blocks with their source
		for _, path := range own {
			if err := b.cfg.Rewrite(ctx, path, path+newSuffix); err != nil {
				return fmt.Errorf("defragment the disk: %w", err)
			}
			if err := os.Rename(path+newSuffix, path); err != nil {
				return err
			}
		}
	}
	disks, memories := b.otherTemplateFiles(j.recipe.Name)
	if s := j.recipe.spec; s != nil && s.Image == "" { // searching all templates takes too long for a build
		disks, memories = nil, nil
	}
	for _, path := range own {
		if err := b.shareBlocks(ctx, j, path, disks); err != nil {
			return err
		}
	}
	if err := b.punchHoles(ctx, d); err != nil {
		return err
	}
	return filepath.WalkDir(d.ImageDir(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		return b.shareBlocks(ctx, j, path, memories)
	})
}

// otherTemplateFiles returns the disk and memory files of the other baked templates.
func (b *Baker) otherTemplateFiles(name hostapi.TemplateName) (disks, memories []string) {
	for _, snap := range b.cfg.Store.List(Area) {
		if filepath.Dir(string(snap.Ref)) == string(snapshot.Join(Area, string(name))) {
			continue
		}
		disks = append(disks, snap.DiskPaths()...)
		for _, f := range snap.Manifest.Files {
			memories = append(memories, filepath.Join(snap.Image().Dir, f.Name))
		}
	}
	return disks, memories
}

func (b *Baker) shareBlocks(ctx context.Context, j *job, path string, known []string) error {
	if b.cfg.Share == nil || len(known) == 0 {
		return nil
	}
	n, err := b.cfg.Share(ctx, path, known)
	if err == nil && n > 0 {
		j.log(fmt.Sprintf("%s shares %d MiB with other templates", filepath.Base(path), n>>20))
	}
	return err
}

// shareImageBlocks makes the images that are kept for later bakes share their blocks with the disks of the snapshot.
// It runs after the snapshot was measured: the images are no part of the template's size.
func (b *Baker) shareImageBlocks(ctx context.Context, j *job, snap snapshot.Snapshot) error {
	if b.cfg.Share == nil || j.recipe.spec != nil || j.recapture != "" {
		return nil
	}
	from := recipeImages(b.imagePath(j.recipe), j.recipe.Disks)
	_, err := b.cfg.Share(ctx, from.root, []string{snap.DiskPath()})
	for i, d := range from.data {
		if err == nil {
			_, err = b.cfg.Share(ctx, d.Path, snap.DiskPaths()[i+1:i+2])
		}
	}
	return err
}
