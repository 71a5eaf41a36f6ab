package guesttest

import (
	"errors"
	"maps"
	"path"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// xattrs checks that every call returns a file's metadata, that a write replaces it as a whole, and that an overwrite
// without metadata removes it.
func xattrs(t *testing.T, e Env) {
	ctx, g, name := Context(t), e.Guest, path.Join(e.Dir, "noted")
	write := func(notes map[string]string) guestapi.FileInfo {
		i, err := g.Write(
			ctx,
			name,
			guestapi.WriteOptions{User: e.User, Size: 1, Metadata: notes},
			strings.NewReader("x"),
		)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	for _, want := range []map[string]string{{"author": "me", "empty": ""}, {"other": "2"}, nil} {
		if i := write(want); !maps.Equal(i.Metadata, want) {
			t.Errorf("Write with metadata %v: got %v", want, i.Metadata)
		}
		i, err := g.Stat(ctx, name, e.User)
		if err != nil || !maps.Equal(i.Metadata, want) {
			t.Errorf("Stat with metadata %v: got %v, %v", want, i.Metadata, err)
		}
		list, err := g.List(ctx, e.Dir, e.User, 1)
		if err != nil || len(list) != 1 || !maps.Equal(list[0].Metadata, want) {
			t.Errorf("List with metadata %v: got %+v, %v", want, list, err)
		}
	}
	for _, bad := range []map[string]string{
		{"": "x"},
		{"k": strings.Repeat("v", guestapi.MaxMetadata)},
		{strings.Repeat("k", 250): "v"},
	} {
		_, err := g.Write(
			ctx,
			name,
			guestapi.WriteOptions{User: e.User, Size: 1, Metadata: bad},
			strings.NewReader("y"),
		)
		if !errors.Is(err, guestapi.ErrInvalid) {
			t.Errorf("metadata out of range: got error %v", err)
		}
	}
	if got := get(t, e, name, 0, -1); string(got) != "x" {
		t.Errorf("a refused write left %q", got)
	}
}

// reopen checks that programs of any user can open their outputs by name.
func reopen(t *testing.T, e Env) {
	o := Exec(
		t,
		e.Guest,
		guestapi.ProcessSpec{User: e.User, Shell: "echo out >/proc/self/fd/1; echo err >/proc/self/fd/2"},
	)
	if o.Exit.Code != 0 || o.Stdout != "out\n" || o.Stderr != "err\n" {
		t.Errorf("got %+v", o)
	}
}
