package nodebackup

import (
	"errors"
	"path"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

var testParts = []*chunkstore.Manifest{{Files: []chunkstore.File{{Name: "f1", Bytes: 5}, {Name: "f2", Bytes: 6}}}}

func TestDecodeIndexRefuses(t *testing.T) {
	for _, entries := range []string{
		`{"path":"../x","kind":"dir"}`, `{"path":"/x","kind":"dir"}`, `{"path":".","kind":"dir"}`,
		`{"path":"a/b","kind":"dir"}`, `{"path":"a","kind":"dir"},{"path":"a","kind":"dir"}`,
		`{"path":"a","kind":"link","target":"/etc"},{"path":"a/b","kind":"file","name":"f1","bytes":5}`,
		`{"path":"a","kind":"link"}`, `{"path":"a","kind":"device"}`, `{"path":"a","kind":"file","part":1}`,
		`{"path":"a","kind":"file","name":"f1","bytes":6}`, `{"path":"a","kind":"file","part":-1}`,
		`{"path":"a","kind":"file","name":"f1","bytes":5},{"path":"b","kind":"file","name":"f1","bytes":5}`,
		`{"path":"a","kind":"dir","uid":-1}`, `{"path":".restore/x","kind":"dir"}`,
		`{"path":"restore.incomplete","kind":"dir"}`, `{"path":"a","kind":"dir","mode":65535}`, `17`,
	} {
		_, err := decodeIndex([]byte(`{"entries":[`+entries+`]}`), testParts)
		if !errors.Is(err, chunkstore.ErrVersion) {
			t.Errorf("%s: %v, want ErrVersion", entries, err)
		}
	}
	good := `{"path":"a","kind":"dir"},{"path":"a/b","kind":"file","name":"f1","bytes":5}`
	if all, err := decodeIndex([]byte(`{"entries":[`+good+`]}`), testParts); err != nil || len(all) != 2 {
		t.Errorf("decodeIndex = %v, %v", all, err)
	}
}

func FuzzDecodeIndex(f *testing.F) {
	f.Add([]byte(`{"entries":[{"path":"a","kind":"dir"},{"path":"a/b","kind":"file","name":"f1","bytes":5}]}`))
	f.Add([]byte(`{"entries":[{"path":"l","kind":"link","target":"x"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := decodeIndex(data, testParts)
		if err != nil {
			return
		}
		for _, e := range all {
			if path.Clean(e.Path) != e.Path || path.IsAbs(e.Path) || strings.HasPrefix(e.Path, "..") {
				t.Errorf("accepted path %q", e.Path)
			}
		}
	})
}

func FuzzSealedKey(f *testing.F) {
	f.Add(uint32(3), uint32(65536), uint8(4), 16)
	f.Fuzz(func(t *testing.T, time, memory uint32, threads uint8, salt int) {
		k := sealedKey{Version: 1, Time: time, MemoryKiB: memory, Threads: threads, Salt: make([]byte, salt&255)}
		if err := k.check(); err == nil && (k.MemoryKiB > 1<<20 || k.Time > 64 || k.Threads == 0) {
			t.Errorf("accepted %+v", k)
		}
	})
}
