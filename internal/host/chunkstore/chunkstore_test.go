package chunkstore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

func TestPushAndRead(t *testing.T) {
	f := newFixture(t, chunkstore.Config{})
	files := map[string][]byte{
		"memory": content(1, 9<<20), "disk.img": content(2, 4<<20+1), "state": content(3, 70_000),
		"empty": nil, "zero": make([]byte, 5<<20), "tiny": []byte("x"), "edge": content(4, 4096),
	}
	in := chunkstore.Push{Tenant: "ws", ID: "snp1", Meta: []byte(`{"a":1}`)}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		in.Files = append(in.Files, chunkstore.LocalFile{Name: name, Path: file(t, files[name])})
	}
	pushed, _ := f.push(in)
	opened := f.open("ws", "snp1")
	if string(opened.Meta) != `{"a":1}` || opened.Parent != "" || !opened.Created.Equal(pushed.Created) {
		t.Errorf("Open = %+v, want %+v as pushed", opened, pushed)
	}
	for name, data := range files {
		f.wantFile(pushed, name, data)
		f.wantFile(opened, name, data)
	}
}

// Content pushed with HighCompression takes less space and reads back unchanged.
func TestHighCompression(t *testing.T) {
	f := newFixture(t, chunkstore.Config{})
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	data = data[:min(len(data), 6<<20)]
	path := file(t, data)
	stored := map[bool]int64{}
	for dense, id := range map[bool]chunkstore.ID{false: "soon", true: "dense"} {
		m, _ := f.push(
			chunkstore.Push{
				Tenant:          "ws",
				ID:              id,
				Files:           []chunkstore.LocalFile{{Name: "program", Path: path}},
				HighCompression: dense,
			},
		)
		f.wantFile(f.open("ws", id), "program", data)
		stored[dense] = m.Stored()
	}
	if stored[true] >= stored[false]*98/100 {
		t.Errorf(
			"stored %d bytes of %d, and %d with high compression; want at least 2 %% less",
			stored[false],
			len(data),
			stored[true],
		)
	}
}

func TestOnlyTheDifferenceIsUploaded(t *testing.T) {
	for name, c := range map[string]struct {
		change func(data []byte)
		dirty  int64
	}{
		"nothing": {func([]byte) {}, 0},
		"scattered-pages": {func(d []byte) {
			for i := 0; i < len(d); i += 37 * chunkstore.PageSize {
				copy(d[i:], blobtest.Content(uint64(i)+99, chunkstore.PageSize))
			}
		}, 0},
		"one-chunk-rewritten": {func(d []byte) { copy(d[8<<20:12<<20], blobtest.Content(77, 4<<20)) }, 4 << 20},
		"one-byte":            {func(d []byte) { d[5<<20] ^= 1 }, 4096},
		"zeroed":              {func(d []byte) { clear(d[3<<20 : 9<<20]) }, 0},
		"most-of-a-part": {func(d []byte) {
			copy(d[4<<20:8<<20-400<<10], blobtest.Content(7, 4<<20-400<<10))
		}, 4<<20 - 400<<10},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, chunkstore.Config{})
			before := blobtest.Content(1, 12<<20)
			path := file(t, before)
			parent := f.pushMemory(chunkstore.Common, "base", before)
			after := bytes.Clone(before)
			c.change(after)
			var dirty int64
			for i := 0; i < len(after); i += chunkstore.PageSize {
				page := after[i : i+chunkstore.PageSize]
				if !bytes.Equal(page, before[i:i+chunkstore.PageSize]) &&
					!bytes.Equal(page, make([]byte, chunkstore.PageSize)) {
					dirty += chunkstore.PageSize
				}
			}
			if c.dirty != 0 && c.dirty != dirty {
				t.Fatalf("the change makes %d bytes dirty, want %d", dirty, c.dirty)
			}
			m, stats := f.push(
				chunkstore.Push{
					Tenant:      "ws",
					ID:          "fork",
					Files:       []chunkstore.LocalFile{{Name: "memory", Path: file(t, after)}},
					Parent:      parent,
					ParentFiles: map[string]string{"memory": path},
				},
			)
			if stats.DirtyBytes != dirty {
				t.Errorf("DirtyBytes = %d, want %d", stats.DirtyBytes, dirty)
			}
			// A manifest of some KiB is added; compared with a real difference it is next to nothing.
			if limit := dirty + dirty/5 + 16<<10; stats.Uploaded > limit {
				t.Errorf("uploaded %d bytes for %d dirty bytes, want about as many", stats.Uploaded, dirty)
			}
			t.Logf("uploaded %d for %d dirty", stats.Uploaded, dirty)
			f.wantFile(m, "memory", after)
			f.wantFile(f.open("ws", "fork"), "memory", after)
		})
	}
}

// In a chain of forks every page is read from one place, and the parents may be deleted.
func TestForkOfAForkNeedsNoParent(t *testing.T) {
	f := newFixture(t, chunkstore.Config{})
	data := content(1, 10<<20)
	path := file(t, data)
	m := f.pushMemory("ws", "f0", data)
	for i := range 5 {
		data = bytes.Clone(data)
		for at := i * chunkstore.PageSize; at < len(data); at += (11 + i) * chunkstore.PageSize {
			copy(data[at:], blobtest.Content(uint64(at+i), 5000))
		}
		next := file(t, data)
		id := chunkstore.ID("f" + string(rune('1'+i)))
		parent := m
		m, _ = f.push(chunkstore.Push{Tenant: "ws", ID: id, Files: []chunkstore.LocalFile{{Name: "memory", Path: next}},
			Parent: parent, ParentFiles: map[string]string{"memory": path}})
		if err := f.store.Delete(t.Context(), "ws", parent.ID); err != nil {
			t.Fatal(err)
		}
		path = next
		f.wantFile(f.open("ws", id), "memory", data)
	}
}

func TestEqualContentIsStoredOnceInAWorkspace(t *testing.T) {
	f := newFixture(t, chunkstore.Config{})
	data := blobtest.Content(1, 8<<20)
	f.pushMemory("ws", "a", data)
	_, again := f.push(
		chunkstore.Push{
			Tenant: "ws",
			ID:     "b",
			Files:  []chunkstore.LocalFile{{Name: "memory", Path: file(t, data)}, {Name: "copy", Path: file(t, data)}},
		},
	)
	if again.Reused != 2 || again.Chunks != 2 || again.Uploaded > 8<<10 {
		t.Errorf("second push = %+v, want 2 chunks reused and only a manifest uploaded", again)
	}
	_, other := f.push(
		chunkstore.Push{Tenant: "other", ID: "b", Files: []chunkstore.LocalFile{{Name: "memory", Path: file(t, data)}}},
	)
	if other.Reused != 0 || other.Uploaded < 8<<20 {
		t.Errorf("push of another workspace = %+v, want nothing reused", other)
	}
	names := map[string]bool{}
	for _, key := range blobtest.Keys(t, f.objects, "w/") {
		parts := strings.SplitN(key, "/c/", 2)
		if len(parts) == 2 && names[parts[1]] {
			t.Errorf("chunk %s has the same name in two workspaces", parts[1])
		}
		names[parts[len(parts)-1]] = true
	}
}

func TestStoredObjectsRevealNothing(t *testing.T) {
	f := newFixture(t, chunkstore.Config{})
	secret := []byte("SECRET-VALUE-OF-A-WORKSPACE")
	data := bytes.Repeat(secret, 10_000)
	f.push(
		chunkstore.Push{
			Tenant: "workspacename",
			ID:     "a",
			Meta:   secret,
			Files:  []chunkstore.LocalFile{{Name: "memory", Path: file(t, data)}},
		},
	)
	for _, key := range blobtest.Keys(t, f.objects, "") {
		stored := get(t, f, key)
		for _, s := range [][]byte{secret, []byte("workspacename"), []byte("memory")} {
			if bytes.Contains(stored, s) || strings.Contains(key, string(s)) {
				t.Errorf("object %s reveals %q", key, s)
			}
		}
	}
}

func TestManifestsAreRefused(t *testing.T) {
	f := newFixture(t, quickRetries)
	f.pushMemory("ws", "a", content(1, 1<<20))
	f.pushMemory("ws", "b", content(2, 1<<20))
	key := manifestKey(t, f, "/m/a")
	good, err := blobtest.Get(t.Context(), f.objects, key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"empty":      {nil, chunkstore.ErrTampered},
		"other-data": {[]byte("hello"), chunkstore.ErrTampered},
		"truncated":  {good[:len(good)-1], chunkstore.ErrTampered},
		"head-only":  {good[:40], chunkstore.ErrTampered},
		"longer":     {append(bytes.Clone(good), 0), chunkstore.ErrTampered},
		"version":    {set(good, 4, 9), chunkstore.ErrVersion},
		"tenant":     {set(good, 6, good[6]^1), chunkstore.ErrWrongTenant},
		"id":         {set(good, 22, 'c'), chunkstore.ErrTampered},
		"content":    {set(good, len(good)-60, good[len(good)-60]^1), chunkstore.ErrTampered},
		"signature":  {set(good, len(good)-1, good[len(good)-1]^1), chunkstore.ErrTampered},
		"of-another": {get(t, f, manifestKey(t, f, "/m/b")), chunkstore.ErrTampered},
	} {
		blobtest.Put(t, f.objects, key, c.data)
		if _, err := f.store.Open(t.Context(), "ws", "a"); !errors.Is(err, c.want) {
			t.Errorf("Open of a manifest that is %s: got %v, want %v", name, err, c.want)
		}
	}
	blobtest.Put(t, f.objects, key, good)
	f.open("ws", "a")
	if _, err := f.store.Open(t.Context(), "other", "a"); !errors.Is(err, chunkstore.ErrNotFound) {
		t.Errorf("Open in another workspace: got %v, want ErrNotFound", err)
	}
	// An attacker who can write to the store gives a workspace the manifest of another.
	f.pushMemory("other", "a", content(3, 1<<20))
	for _, k := range blobtest.Keys(t, f.objects, "w/") {
		if strings.HasSuffix(k, "/m/a") && k != key {
			blobtest.Put(t, f.objects, k, good)
		}
	}
	if _, err := f.store.Open(t.Context(), "other", "a"); !errors.Is(err, chunkstore.ErrWrongTenant) {
		t.Errorf("Open of another workspace's manifest: got %v, want ErrWrongTenant", err)
	}
	if _, err := f.newStore(ring(t, 2), quickRetries).Open(t.Context(), "ws", "a"); !errors.Is(
		err,
		chunkstore.ErrNotFound,
	) {
		t.Errorf("Open with another master key: got %v, want ErrNotFound", err)
	}
}

func manifestKey(t *testing.T, f *fixture, suffix string) string {
	t.Helper()
	for _, k := range blobtest.Keys(t, f.objects, "w/") {
		if strings.HasSuffix(k, suffix) {
			return k
		}
	}
	t.Fatalf("no object has a key that ends with %s", suffix)
	return ""
}

func get(t *testing.T, f *fixture, key string) []byte {
	t.Helper()
	data, err := blobtest.Get(t.Context(), f.objects, key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func set(data []byte, at int, b byte) []byte {
	out := bytes.Clone(data)
	out[at] = b
	return out
}

func TestPushIsRefused(t *testing.T) {
	f := newFixture(t, quickRetries)
	path := file(t, content(1, 1<<20))
	parent := f.pushMemory("ws", "a", content(1, 1<<20))
	common := f.pushMemory(chunkstore.Common, "base", content(1, 1<<20))
	deleted := f.pushMemory("ws", "gone", content(1, 1<<20))
	if err := f.store.Delete(t.Context(), "ws", "gone"); err != nil {
		t.Fatal(err)
	}
	one := []chunkstore.LocalFile{{Name: "memory", Path: path}}
	push := func(tenant chunkstore.Tenant, parent *chunkstore.Manifest) chunkstore.Push {
		return chunkstore.Push{Tenant: tenant, ID: "b", Files: one, Parent: parent}
	}
	pushFile := func(name, path string) chunkstore.Push {
		return chunkstore.Push{Tenant: "ws", ID: "b", Files: []chunkstore.LocalFile{{Name: name, Path: path}}}
	}
	for name, c := range map[string]struct {
		in   chunkstore.Push
		want error
	}{
		"taken":                 {chunkstore.Push{Tenant: "ws", ID: "a", Files: one}, chunkstore.ErrExists},
		"parent-of-others":      {push("other", parent), chunkstore.ErrWrongTenant},
		"common-over-workspace": {push(chunkstore.Common, parent), chunkstore.ErrWrongTenant},
		"parent-deleted":        {push("ws", deleted), chunkstore.ErrNotFound},
		"id":                    {chunkstore.Push{Tenant: "ws", ID: "../b", Files: one}, nil},
		"file-name":             {pushFile("../x", path), nil},
		"file-missing":          {pushFile("x", path+"x"), fs.ErrNotExist},
		"file-is-directory":     {pushFile("x", t.TempDir()), nil},
		"other-parent-file": {chunkstore.Push{Tenant: "ws", ID: "b", Files: one, Parent: common,
			ParentFiles: map[string]string{"memory": file(t, []byte("short"))}}, nil},
	} {
		_, _, err := f.store.Push(t.Context(), c.in)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("Push, %s: got %v, want %v", name, err, c.want)
		}
	}
	for _, k := range blobtest.Keys(t, f.objects, "w/") {
		if strings.HasSuffix(k, "/m/b") {
			t.Errorf("a rejected push left %s", k)
		}
	}
}

func TestRunsAndRanges(t *testing.T) {
	f := newFixture(t, chunkstore.Config{})
	data := content(1, 6<<20+123)
	r := f.store.Reader(f.pushMemory("ws", "a", data), f.cache)
	off := int64(0)
	for off < int64(len(data)) {
		n, zero := r.RunAt("memory", off)
		if n <= 0 {
			t.Fatalf("RunAt(%d) = %d bytes, want a positive length", off, n)
		}
		for page := off; page < off+n; page += chunkstore.PageSize {
			end := min(page+chunkstore.PageSize, int64(len(data)))
			if is := bytes.Equal(data[page:end], make([]byte, end-page)); is != zero {
				t.Fatalf("page at %d is zero: %v, but RunAt reports %v", page, is, zero)
			}
		}
		off += n
	}
	for _, at := range []int64{-1, off, off + 1} {
		if n, _ := r.RunAt("memory", at); n != 0 {
			t.Errorf("RunAt(%d) = %d bytes, want 0", at, n)
		}
	}
	p := make([]byte, 10)
	for _, at := range []int64{-1, off - 9, off} {
		if err := r.ReadAt(t.Context(), "memory", p, at); err == nil {
			t.Errorf("ReadAt(%d): got nil, want an error", at)
		}
	}
	if err := r.ReadAt(t.Context(), "none", p, 0); err == nil {
		t.Error("ReadAt of a missing file: got nil, want an error")
	}
	for _, x := range []chunkstore.Range{{"none", 0, 1}, {"memory", -1, 1}, {"memory", 0, off + 1}, {"memory", 1, -1}} {
		if err := r.Prefetch(t.Context(), []chunkstore.Range{x}); err == nil {
			t.Errorf("Prefetch(%v): got nil, want an error", x)
		}
	}
}

func TestPrefetchedIsReadWithoutTheStore(t *testing.T) {
	f := newFixture(t, chunkstore.Config{})
	data := content(1, 9<<20)
	m := f.pushMemory("ws", "a", data)
	r := f.store.Reader(m, f.cache)
	ranges := []chunkstore.Range{{"memory", 4 << 20, 2 << 20}, {"memory", 0, int64(len(data))}}
	if err := r.Prefetch(t.Context(), ranges); err != nil {
		t.Fatal(err)
	}
	f.objects.SetFaults(func(blobtest.Call) blobtest.Fault { return blobtest.Fault{Err: errors.New("touched")} })
	for _, r := range []*chunkstore.Reader{r, f.store.Reader(m, f.cache)} {
		p := make([]byte, len(data))
		if err := r.ReadAt(t.Context(), "memory", p, 0); err != nil || !bytes.Equal(p, data) {
			t.Errorf("ReadAt after a prefetch: %v, or wrong content", err)
		}
	}
	if n := f.objects.Count("get"); n != 0 {
		t.Errorf("got %d requests to the store, want 0", n)
	}
}

func TestNeighboursAreOneRequest(t *testing.T) {
	f := newFixture(t, chunkstore.Config{})
	data := blobtest.Content(1, 4<<20)
	r := f.store.Reader(f.pushMemory("ws", "a", data), f.cache)
	f.objects.SetFaults(nil)
	if err := r.ReadAt(t.Context(), "memory", make([]byte, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if n := f.objects.Count("get"); n != 1 {
		t.Errorf("reading a MiB took %d requests, want 1", n)
	}
}

// parentAndChild returns a file and a changed version of it: overwritten, cleared, filled where it was clear,
// and longer.
func parentAndChild() (before, after []byte) {
	before = blobtest.Content(1, 12<<20)
	clear(before[5<<20 : 6<<20])
	after = append(bytes.Clone(before), content(5, 1<<20)...)
	copy(after[2<<20:], blobtest.Content(9, 100_000))
	clear(after[7<<20 : 8<<20])
	copy(after[5<<20:], blobtest.Content(9, 10_000))
	return before, after
}

func TestPullOverABase(t *testing.T) {
	f := newFixture(t, chunkstore.Config{})
	before, after := parentAndChild()
	path := file(t, before)
	base := f.pushMemory(chunkstore.Common, "base", before)
	m, _ := f.push(
		chunkstore.Push{Tenant: "ws", ID: "fork", Files: []chunkstore.LocalFile{{Name: "memory", Path: file(t, after)}},
			Parent: base, ParentFiles: map[string]string{"memory": path}},
	)
	dir := t.TempDir()
	done, err := f.store.Reader(m, f.cache).Pull(t.Context(), dir, &chunkstore.Base{
		Manifest: f.open(chunkstore.Common, "base"), Files: map[string]string{"memory": path},
		Clone: func(from, to string) error {
			data, err := os.ReadFile(from)
			return errors.Join(err, os.WriteFile(to, data, 0o600))
		},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "memory"))
	if err != nil || !bytes.Equal(got, after) {
		t.Errorf("pulled %d bytes, %v; want the content that was pushed", len(got), err)
	}
	if done.Bytes > 1<<20+200_000 || done.Fetched > 1<<20+400_000 {
		t.Errorf("Pull = %+v, want only the difference", done)
	}
	if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data, before) {
		t.Error("Pull changed the base")
	}
}

func TestListOfManifests(t *testing.T) {
	f := newFixture(t, quickRetries)
	for id, tenant := range map[chunkstore.ID]chunkstore.Tenant{"b": "ws", "a": "ws", "c": "other"} {
		f.pushMemory(tenant, id, content(1, 4096))
	}
	if err := f.store.Delete(t.Context(), "other", "c"); err != nil {
		t.Fatal(err)
	}
	f.objects.SetFaults(func(c blobtest.Call) blobtest.Fault {
		if c.Op == "list" && c.N == 0 {
			return blobtest.Fault{Err: os.ErrClosed}
		}
		return blobtest.Fault{}
	})
	for tenant, want := range map[chunkstore.Tenant][]chunkstore.ID{"ws": {"a", "b"}, "other": nil, "none": nil} {
		if got, err := f.store.List(t.Context(), tenant); err != nil || !slices.Equal(got, want) {
			t.Errorf("manifests of %q = %v, %v; want %v", tenant, got, err, want)
		}
	}
	f.objects.SetFaults(func(blobtest.Call) blobtest.Fault { return blobtest.Fault{Err: os.ErrClosed} })
	if _, err := f.store.List(t.Context(), "ws"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("manifests of a store that fails: got %v, want its error", err)
	}
}
