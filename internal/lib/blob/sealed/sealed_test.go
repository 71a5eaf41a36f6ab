package sealed_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobsuite"
	"github.com/pandastack/pandastack/internal/lib/blob/sealed"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// prefix is that of the keys below.
const prefix = "below/"

func open(t *testing.T, key byte) (under, over blob.Store) {
	t.Helper()
	under, err := blob.Open(t.Context(), "file://"+t.TempDir(), blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := under.Close(); err != nil {
			t.Error(err)
		}
	})
	return under, seal(t, under, key)
}

func seal(t *testing.T, under blob.Store, key byte) blob.Store {
	t.Helper()
	s, err := sealed.New(under, bytes.Repeat([]byte{key}, keyring.KeyBytes), prefix)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, s blob.Store, key string) ([]byte, error) {
	t.Helper()
	r, err := s.Get(t.Context(), key, 0, -1)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

func put(t *testing.T, s blob.Store, key string, data []byte) {
	t.Helper()
	if err := s.Put(t.Context(), key, bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatal(err)
	}
}

func TestSuite(t *testing.T) {
	blobsuite.Run(t, func(t *testing.T) blob.Store { _, s := open(t, 1); return s })
}

// TestSizes reads what was written, of sizes around those of segments, and nothing of it is visible below.
func TestSizes(t *testing.T) {
	const segment = 64 << 10
	for _, size := range []int{0, 1, segment - 1, segment, segment + 1, 3 * segment, 3*segment + 7} {
		under, s := open(t, 1)
		data := bytes.Repeat([]byte("hidden "), size/7+1)[:size]
		put(t, s, "a", data)
		got, err := read(t, s, "a")
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes: read %d, %v", size, len(got), err)
		}
		if info, err := s.Stat(t.Context(), "a"); err != nil || info.Bytes != int64(size) {
			t.Errorf("%d bytes: described as %d, %v", size, info.Bytes, err)
		}
		raw, err := read(t, under, prefix+"a")
		if err != nil || size > 6 && bytes.Contains(raw, []byte("hidden")) {
			t.Errorf("%d bytes: stored as %d that show the content, %v", size, len(raw), err)
		}
	}
}

// TestForged changes, cuts, extends, reorders and moves an object, and reads it with another key: nothing is read.
func TestForged(t *testing.T) {
	const segment, tag, salt = 64 << 10, 16, 32
	under, s := open(t, 1)
	data := bytes.Repeat([]byte{7}, 2*segment+5)
	put(t, s, "a", data)
	raw, err := read(t, under, prefix+"a")
	if err != nil {
		t.Fatal(err)
	}
	one, two := raw[salt:salt+segment+tag], raw[salt+segment+tag:salt+2*(segment+tag)]
	for name, forged := range map[string][]byte{
		"empty":      {},
		"no segment": raw[:salt],
		"salt":       append([]byte{raw[0] ^ 1}, raw[1:]...),
		"first":      append(append(bytes.Clone(raw[:salt]), one[0]^1), raw[salt+1:]...),
		"last":       append(bytes.Clone(raw[:len(raw)-1]), raw[len(raw)-1]^1),
		"cut":        raw[:len(raw)-1],
		"segment":    raw[:salt+2*(segment+tag)],
		"longer":     append(bytes.Clone(raw), 0),
		"order":      bytes.Join([][]byte{raw[:salt], two, one, raw[salt+2*(segment+tag):]}, nil),
	} {
		put(t, under, prefix+"a", forged)
		if got, err := read(t, s, "a"); !errors.Is(err, keyring.ErrSealed) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	put(t, under, prefix+"a", raw)
	put(t, under, prefix+"b", raw)
	if _, err := read(t, s, "b"); !errors.Is(err, keyring.ErrSealed) {
		t.Errorf("moved: %v", err)
	}
	if _, err := read(t, seal(t, under, 2), "a"); !errors.Is(err, keyring.ErrSealed) {
		t.Errorf("another key: %v", err)
	}
	if got, err := read(t, s, "a"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the object itself: %v", err)
	}
	if _, err := sealed.New(under, []byte("short"), ""); err == nil {
		t.Error("a short key is taken")
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{1}, 100))
	f.Fuzz(func(t *testing.T, raw []byte) {
		under, s := open(t, 1)
		put(t, under, prefix+"a", raw)
		if got, err := read(t, s, "a"); err == nil {
			t.Errorf("%d bytes are read of content that was not sealed", len(got))
		}
	})
}
