package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestBuildDirIsExclusiveAndClean(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kernel")
	if err := os.MkdirAll(filepath.Join(dir, workPrefix+"killed", "tree"), 0o755); err != nil {
		t.Fatal(err)
	}
	work, done, err := buildDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, workPrefix+"*")); len(left) != 1 || left[0] != work {
		t.Errorf("got entries %v, want %s alone", left, work)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if _, _, err := buildDir(ctx, dir); !errors.Is(err, cause) {
		t.Errorf("second buildDir: got error %v, want the context's cause", err)
	}
	if _, err := os.Stat(work); err != nil {
		t.Errorf("the second buildDir removed the first one's directory: %v", err)
	}
	if err := done(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, done, err = buildDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := done(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, workPrefix+"*")); len(left) != 0 {
		t.Errorf("got leftovers %v, want none", left)
	}
}

func TestSweepKeepsUsedFiles(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{
		"initramfs-new.cpio": time.Minute,
		"initramfs-old.cpio": time.Hour,
		"other":              time.Hour,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := sweep(dir, now.Add(-30*time.Minute)); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 2 || filepath.Base(left[0]) != "initramfs-new.cpio" {
		t.Errorf("after sweep: got entries %v, %v", left, err)
	}
}
