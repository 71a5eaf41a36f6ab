package node

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// TestFunctionCode: two nodes over one object store have each other's code, which is encrypted there. Code of a node's
// directory is moved to the store that it is given, also after a move that was cut short.
func TestFunctionCode(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	bucket := "PANDASTACK_OBJECT_STORE_URL=file://" + filepath.Join(dir, "store")
	key := "PANDASTACK_OBJECT_STORE_KEY=" + filepath.Join(dir, "key")
	put := func(s blob.Store, key, text string) {
		t.Helper()
		if err := s.Put(ctx, key, strings.NewReader(text), int64(len(text))); err != nil {
			t.Fatal(err)
		}
	}
	get := func(s blob.Store, key string) string {
		t.Helper()
		r, err := s.Get(ctx, key, 0, -1)
		if err != nil {
			return err.Error()
		}
		data, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil {
			return err.Error()
		}
		return string(data)
	}
	one := newNode(t)
	alone, err := one.functionCode(ctx, "one")
	if err != nil {
		t.Fatal(err)
	}
	put(alone, "functions/a", "the code of a")
	put(alone, "functions/b", "the code of b")
	shared := newNode(t, bucket, key)
	shared.Config.DataDir = one.Config.DataDir
	if _, err := shared.functionCode(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	put(alone, "functions/a", "the code of a") // as if the node had been killed before it was removed
	first, err := shared.functionCode(ctx, "one")
	if err != nil {
		t.Fatal(err)
	}
	second, err := newNode(t, bucket, key).functionCode(ctx, "one")
	if err != nil {
		t.Fatal(err)
	}
	put(second, "functions/c", "the code of c")
	if _, err := first.Stat(ctx, "functions/a"); err != nil {
		t.Errorf("moved: %v", err)
	}
	for _, name := range []string{"a", "b", "c"} {
		for n, s := range []blob.Store{first, second} {
			if got := get(s, "functions/"+name); got != "the code of "+name {
				t.Errorf("node %d has %q for %s", n+1, got, name)
			}
		}
		if got := get(alone, "functions/"+name); !strings.Contains(got, blob.ErrNotFound.Error()) {
			t.Errorf("the directory has %q for %s", got, name)
		}
	}
	raw, err := blob.Open(ctx, strings.TrimPrefix(bucket, "PANDASTACK_OBJECT_STORE_URL="), blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := raw.Close(); err != nil {
			t.Error(err)
		}
	}()
	other, err := newNode(t, bucket, key).functionCode(ctx, "other")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.List(ctx, "", func(i blob.Info) error { return errors.New(i.Key) }); err != nil {
		t.Errorf("nodes over another store see %v", err)
	}
	if got := get(raw, "functions/one/functions/a"); got == "" || strings.Contains(got, "the code") {
		t.Errorf("the object store shows %q", got)
	}
	stranger, err := newNode(t, bucket).functionCode(ctx, "one")
	if err != nil {
		t.Fatal(err)
	}
	if got := get(stranger, "functions/a"); !strings.Contains(got, keyring.ErrSealed.Error()) {
		t.Errorf("a node with another key reads %q", got)
	}
}
