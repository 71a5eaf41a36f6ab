package chunkstore

import (
	"bytes"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/keyring"
)

func fuzzRealm(t testing.TB) (codec, *tenantKeys) {
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.New(make([]byte, keyring.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	return c, &newKeys(ring, tagOf(ring, "ws")).own
}

func sample() *Manifest {
	return &Manifest{ID: "a", Parent: "b", Created: time.Unix(1, 2).UTC(), Meta: []byte("{}"),
		Chunks: []Chunk{
			{Name: Name{1}, Pages: 40, Frames: []int{1000, 200}},
			{Name: Name{2}, Common: true, Pages: 1, Frames: []int{100}},
		},
		Files: []File{
			{Name: "memory", Bytes: 1 << 20, Mode: 0o600, Extents: []Extent{{1, 3, 0, 5}, {4, 1, 1, 0}, {9, 32, 0, 8}}},
			{Name: "empty"},
		}}
}

// A decoded manifest is valid, and is equal after it is encoded and decoded again.
func FuzzManifest(f *testing.F) {
	f.Add(sample().encode())
	f.Add((&Manifest{}).encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		var m, again Manifest
		if m.decode(data) != nil {
			return
		}
		for _, file := range m.Files {
			last := int64(0)
			for _, e := range file.Extents {
				if e.Page < last || e.end() > pagesOf(file.Bytes) || e.Chunk >= len(m.Chunks) || e.At < 0 ||
					e.At+e.Count > m.Chunks[e.Chunk].Pages {
					t.Fatalf("decode accepted extent %+v of %+v", e, file)
				}
				last = e.end()
			}
		}
		if err := again.decode(m.encode()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again.encode(), m.encode()) {
			t.Fatal("decoding and encoding changed the manifest")
		}
	})
}

func FuzzEnvelope(f *testing.F) {
	c, r := fuzzRealm(f)
	good, err := sample().envelope(c, r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(magic))
	f.Add(good[:headBytes+1])
	f.Fuzz(func(t *testing.T, data []byte) {
		// Signed manifests differ between processes, and the fuzzer runs several, so the decoded content is
		// compared.
		if m, err := parse(c, r, "a", data); err == nil && !bytes.Equal(m.encode(), sample().encode()) {
			t.Fatal("parse accepted a manifest that was not signed")
		}
	})
}

func FuzzFrames(f *testing.F) {
	c, r := fuzzRealm(f)
	pages := bytes.Repeat([]byte("pages of a guest"), 40*PageSize/16)
	ch, object, err := seal(c, r, pages)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(object, 0, 2)
	f.Add(object[:ch.Frames[0]], 0, 1)
	f.Add(object[ch.Frames[0]:], 1, 1)
	f.Fuzz(func(t *testing.T, data []byte, first, count int) {
		if first < 0 || count < 1 || first >= len(ch.Frames) || count > len(ch.Frames)-first {
			return
		}
		got, err := open(c, r, ch, first, count, bytes.Clone(data), nil)
		if from := first * FrameSize; err == nil &&
			!bytes.Equal(got, pages[from:min(len(pages), from+count*FrameSize)]) {
			t.Fatal("open accepted frames that were not sealed")
		}
	})
}

func FuzzUnpack(f *testing.F) {
	c, _ := fuzzRealm(f)
	f.Add(c.pack(make([]byte, 5000)), 5000)
	f.Add(c.pack([]byte("x")), 1)
	f.Add([]byte{plainFrame}, 0)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		if size < 0 || size > FrameSize {
			return
		}
		if out, err := c.unpack(make([]byte, 0, size+slack), data, size); err == nil && len(out) != size {
			t.Fatalf("unpack = %d bytes, want %d", len(out), size)
		}
	})
}
