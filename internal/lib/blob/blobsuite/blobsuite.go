// Package blobsuite is the test suite that every implementation of blob.Store passes.
package blobsuite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

// Run tests a store against the contract of blob.Store. open returns an empty store for each test and closes
// it with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) blob.Store) {
	for _, c := range []struct {
		name string
		test func(*testing.T, blob.Store)
	}{
		{"get-gives-what-was-put", getWhatWasPut},
		{"ranges", ranges},
		{"put-replaces", putReplaces},
		{"put-if-absent-once", putIfAbsentOnce},
		{"put-needs-all-bytes", putNeedsAllBytes},
		{"missing", missing},
		{"list-in-order", listInOrder},
		{"list-stops", listStops},
		{"delete", deleteTwice},
		{"keys", keys},
		{"ended-context", endedContext},
		{"at-once", atOnce},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func want(t *testing.T, s blob.Store, key string, offset, length int64, data []byte) {
	t.Helper()
	got, err := blobtest.Get(t.Context(), s, key, offset, length)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf(
			"Get(%q, %d, %d) = %d bytes, %v; want %d bytes as written",
			key,
			offset,
			length,
			len(got),
			err,
			len(data),
		)
	}
}

func getWhatWasPut(t *testing.T, s blob.Store) {
	for i, n := range []int{0, 1, 4096, 6 << 20} {
		key, data := fmt.Sprintf("a/b-%d", i), blobtest.Content(uint64(i), n)
		blobtest.Put(t, s, key, data)
		want(t, s, key, 0, -1, data)
		info, err := s.Stat(t.Context(), key)
		if err != nil || info.Key != key || info.Bytes != int64(n) || info.Modified.IsZero() {
			t.Errorf("Stat(%q) = %+v, %v; want %d bytes", key, info, err, n)
		}
	}
}

func ranges(t *testing.T, s blob.Store) {
	data := blobtest.Content(1, 300_000)
	blobtest.Put(t, s, "x", data)
	want(t, s, "x", 0, 10, data[:10])
	want(t, s, "x", 1000, 200_000, data[1000:201_000])
	want(t, s, "x", 299_990, 10, data[299_990:])
	want(t, s, "x", 299_990, 100, data[299_990:])
	want(t, s, "x", 299_990, -1, data[299_990:])
	want(t, s, "x", 5, 0, nil)
	if got, err := blobtest.Get(t.Context(), s, "x", 300_001, 10); err == nil {
		t.Errorf("Get beyond the end = %d bytes, want an error", len(got))
	}
	if got, err := blobtest.Get(t.Context(), s, "x", -1, 10); err == nil {
		t.Errorf("Get at a negative offset = %d bytes, want an error", len(got))
	}
}

func putReplaces(t *testing.T, s blob.Store) {
	blobtest.Put(t, s, "x", []byte("first"))
	blobtest.Put(t, s, "x", []byte("2"))
	want(t, s, "x", 0, -1, []byte("2"))
}

func putIfAbsentOnce(t *testing.T, s blob.Store) {
	var wg sync.WaitGroup
	var won atomic.Int32
	for i := range 6 {
		wg.Go(func() {
			data := blobtest.Content(uint64(i), 10_000)
			err := s.PutIfAbsent(t.Context(), "x", bytes.NewReader(data), int64(len(data)))
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, blob.ErrExists):
				t.Errorf("PutIfAbsent of an existing object: got %v, want ErrExists", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 6 concurrent PutIfAbsent succeeded, want 1", won.Load())
	}
	before, err := blobtest.Get(t.Context(), s, "x", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PutIfAbsent(t.Context(), "x", strings.NewReader("y"), 1); !errors.Is(err, blob.ErrExists) {
		t.Errorf("PutIfAbsent of an existing object: got %v, want ErrExists", err)
	}
	want(t, s, "x", 0, -1, before)
}

func putNeedsAllBytes(t *testing.T, s blob.Store) {
	broken := errors.New("broken")
	for name, r := range map[string]io.Reader{
		"short":  strings.NewReader("123456789"),
		"long":   strings.NewReader("12345678901"),
		"broken": io.MultiReader(strings.NewReader("12345"), &failing{broken}),
	} {
		if err := s.Put(t.Context(), name, r, 10); err == nil {
			t.Errorf("Put of %s content: got nil, want an error", name)
		}
		if info, err := s.Stat(t.Context(), name); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("Stat after a failed put of %s content = %+v, %v; want ErrNotFound", name, info, err)
		}
	}
	if all := blobtest.Keys(t, s, ""); len(all) != 0 {
		t.Errorf("keys after failed puts = %v, want none", all)
	}
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

func missing(t *testing.T, s blob.Store) {
	blobtest.Put(t, s, "a/b", []byte("x"))
	for _, key := range []string{"c", "a", "a/c", "a/b/c"} {
		if _, err := blobtest.Get(t.Context(), s, key, 0, 1); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("Get(%q): got %v, want ErrNotFound", key, err)
		}
		_, err := s.Stat(t.Context(), key)
		if !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("Stat(%q): got %v, want ErrNotFound", key, err)
		}
		var told *blob.Error
		if !errors.As(err, &told) || told.Key != key || told.Op != "stat" {
			t.Errorf("Stat(%q): got %v, want a *blob.Error with the operation and the key", key, err)
		}
	}
}

func listInOrder(t *testing.T, s blob.Store) {
	all := []string{"a-b", "a.c", "a/1", "a/10", "a/2/3", "ab", "b/a/c", "b/d"}
	for i := range all {
		blobtest.Put(t, s, all[len(all)-1-i], blobtest.Content(1, i))
	}
	for prefix, want := range map[string][]string{
		"": all, "a": all[:6], "a/": all[2:5], "a/1": all[2:4], "b/a": all[6:7], "c": nil, "a/2/": all[4:5],
	} {
		if got := blobtest.Keys(t, s, prefix); !slices.Equal(got, want) {
			t.Errorf("List(%q) = %v, want %v", prefix, got, want)
		}
	}
}

func listStops(t *testing.T, s blob.Store) {
	blobtest.Put(t, s, "a", nil)
	blobtest.Put(t, s, "b", nil)
	enough, n := errors.New("enough"), 0
	err := s.List(t.Context(), "", func(blob.Info) error { n++; return enough })
	if err != enough || n != 1 { // the error itself, not wrapped
		t.Errorf("List = %v after %d objects, want the error of yield after 1", err, n)
	}
}

func deleteTwice(t *testing.T, s blob.Store) {
	blobtest.Put(t, s, "a/b", []byte("x"))
	blobtest.Put(t, s, "a/c", []byte("y"))
	for range 2 {
		if err := s.Delete(t.Context(), "a/b"); err != nil {
			t.Error(err)
		}
	}
	if got := blobtest.Keys(t, s, ""); !slices.Equal(got, []string{"a/c"}) {
		t.Errorf("keys = %v, want a/c", got)
	}
}

func keys(t *testing.T, s blob.Store) {
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", "..", "a/../b", "./a", ".a", "A", "a b", "ä", strings.Repeat("a", 513),
	} {
		if err := s.Put(t.Context(), key, strings.NewReader(""), 0); !errors.Is(err, blob.ErrKey) {
			t.Errorf("Put(%q): got %v, want ErrKey", key, err)
		}
		if _, err := s.Get(t.Context(), key, 0, -1); !errors.Is(err, blob.ErrKey) {
			t.Errorf("Get(%q): got %v, want ErrKey", key, err)
		}
	}
}

func endedContext(t *testing.T, s blob.Store) {
	blobtest.Put(t, s, "x", []byte("x"))
	why := errors.New("no longer wanted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := s.Put(ctx, "y", strings.NewReader("y"), 1); !errors.Is(err, why) {
		t.Errorf("Put with an ended context: got %v, want its cause", err)
	}
	if _, err := blobtest.Get(ctx, s, "x", 0, -1); !errors.Is(err, why) {
		t.Errorf("Get with an ended context: got %v, want its cause", err)
	}
	if got := blobtest.Keys(t, s, ""); !slices.Equal(got, []string{"x"}) {
		t.Errorf("keys = %v, want x", got)
	}
}

// atOnce reads an object while it is replaced: each read returns one of the two contents.
func atOnce(t *testing.T, s blob.Store) {
	a, b := bytes.Repeat([]byte("a"), 100_000), bytes.Repeat([]byte("b"), 100_000)
	blobtest.Put(t, s, "x", a)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 10 {
				data := a
				if i%2 == 0 {
					data = b
				}
				if err := s.Put(t.Context(), "x", bytes.NewReader(data), int64(len(data))); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 10 {
				got, err := blobtest.Get(t.Context(), s, "x", 0, -1)
				if err != nil || !bytes.Equal(got, a) && !bytes.Equal(got, b) {
					t.Errorf("Get during a put = %d bytes, %v; want one of the two contents", len(got), err)
				}
			}
		})
	}
	wg.Wait()
}
