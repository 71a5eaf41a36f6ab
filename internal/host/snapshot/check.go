package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/vmm"
)

// maxHashedBytes bounds the files whose content is checked before every restore. Device states are tens of
// KiB, and hashing a MiB takes about a millisecond.
const maxHashedBytes = 1 << 20

// Check verifies a snapshot's files as far as that takes about a millisecond. It compares the size of every
// file and the content of small ones. The error is a *DamagedError.
func Check(snap Snapshot) error {
	for _, f := range snap.Manifest.Files {
		if err := snap.checkFile(f, f.Bytes <= maxHashedBytes); err != nil {
			return err
		}
	}
	return snap.checkDisks()
}

// Verify is Check for the content of all files with a known checksum, which reads all of the memory. It
// returns early with the cause of ctx if ctx ends.
func Verify(ctx context.Context, snap Snapshot) error {
	for _, f := range snap.Manifest.Files {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := snap.checkFile(f, true); err != nil {
			return err
		}
	}
	return snap.checkDisks()
}

func (s Snapshot) damaged(file, format string, args ...any) error {
	return &DamagedError{Ref: s.Ref, File: file, Problem: fmt.Sprintf(format, args...)}
}

func (s Snapshot) checkFile(want vmm.File, sum bool) error {
	if want.Name == "" || filepath.Base(want.Name) != want.Name {
		return s.damaged(metaFile, "file name %q", want.Name)
	}
	f, err := os.Open(filepath.Join(s.dir, imageDir, want.Name))
	if err != nil {
		return s.damaged(want.Name, "%v", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return s.damaged(want.Name, "%v", err)
	}
	if info.Size() != want.Bytes {
		return s.damaged(want.Name, "%d bytes, not %d", info.Size(), want.Bytes)
	}
	if !sum || want.SHA256 == "" {
		return nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return s.damaged(want.Name, "%v", err)
	}
	if hex.EncodeToString(h.Sum(nil)) != want.SHA256 {
		return s.damaged(want.Name, "content does not match its checksum")
	}
	return nil
}
