package chunkstore_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// pushEnv names a directory. It makes the test binary push the directory's file "memory" into the store next
// to it, a chunk for each line that it reads. It prints "chunk" before it stores one.
const pushEnv = "PANDASTACK_TEST_PUSH"

func TestMain(m *testing.M) {
	if dir := os.Getenv(pushEnv); dir != "" {
		if err := pushFor(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// reportingStore reports before each object that it stores, and waits.
type reportingStore struct {
	blob.Store
	next *bufio.Scanner
}

func (s reportingStore) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	fmt.Println("chunk")
	if !s.next.Scan() {
		return io.ErrUnexpectedEOF
	}
	return s.Store.Put(ctx, key, r, size)
}

func (s reportingStore) PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error {
	fmt.Println("manifest")
	if !s.next.Scan() {
		return io.ErrUnexpectedEOF
	}
	return s.Store.PutIfAbsent(ctx, key, r, size)
}

func pushFor(dir string) error {
	store, err := blob.Open(context.Background(), "file://"+filepath.Join(dir, "store"), blob.Options{})
	if err != nil {
		return err
	}
	ring, err := keyring.New(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		return err
	}
	s, err := chunkstore.New(reportingStore{store, bufio.NewScanner(os.Stdin)}, ring, chunkstore.Config{Parallel: 1})
	if err != nil {
		return err
	}
	_, _, err = s.Push(
		context.Background(),
		chunkstore.Push{
			Tenant: "ws",
			ID:     "a",
			Files:  []chunkstore.LocalFile{{Name: "memory", Path: filepath.Join(dir, "memory")}},
		},
	)
	return err
}

// A host killed at any point of a push leaves nothing that another host sees, and the next push reuses the
// stored chunks.
func TestHostKilledDuringAPush(t *testing.T) {
	data := content(1, 13<<20) // four chunks and a manifest
	for stored := range 5 {
		t.Run(fmt.Sprint("after-", stored), func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "memory"), data, 0o600); err != nil {
				t.Fatal(err)
			}
			killPush(t, dir, stored)
			store, err := blob.Open(t.Context(), "file://"+filepath.Join(dir, "store"), blob.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			f := &fixture{
				t:       t,
				objects: blobtest.NewFaulty(store, nil),
				ring:    ring(t, 1),
				cache:   newCache(t, cache.Config{}),
			}
			f.store = f.newStore(f.ring, quickRetries)
			if _, err := f.store.Open(t.Context(), "ws", "a"); !errors.Is(err, chunkstore.ErrNotFound) {
				t.Errorf("Open after the kill: got %v, want ErrNotFound", err)
			}
			for _, key := range blobtest.Keys(t, store, "") {
				if !strings.Contains(key, "/c/") {
					t.Errorf("object %s is left, want only chunks", key)
				}
			}
			if done, err := f.store.GC(t.Context()); err != nil || done.Chunks != 0 {
				t.Errorf("GC during a push removed %d chunks, %v; want none", done.Chunks, err)
			}
			m, again := f.push(
				chunkstore.Push{
					Tenant: "ws",
					ID:     "a",
					Files:  []chunkstore.LocalFile{{Name: "memory", Path: filepath.Join(dir, "memory")}},
				},
			)
			if again.Reused != stored {
				t.Errorf("Push reused %d chunks, want the %d that were stored", again.Reused, stored)
			}
			f.wantFile(m, "memory", data)
		})
	}
}

// killPush runs a push in another process, and kills it before it stores an object, after that many chunks.
func killPush(t *testing.T, dir string, stored int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), pushEnv+"="+dir)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	for range stored {
		if !said.Scan() || said.Text() != "chunk" {
			t.Errorf("the push process printed %q, want \"chunk\"", said.Text())
		}
		if _, err := fmt.Fprintln(in); err != nil {
			t.Error(err)
		}
	}
	if !said.Scan() {
		t.Error("the push process ended early")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // the process was killed, which Wait reports as an error
}
