package backup

import (
	"bytes"
	"testing"
)

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":1,"volume":"v","size_mib":64,"moment":"2026-01-02T03:04:05Z","labels":{"a":"b"}}`))
	f.Add([]byte(`{"version":1,"size_mib":1e99}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := decode(data)
		if err != nil {
			return
		}
		first, err := d.encode()
		if err != nil {
			return // a time that JSON cannot express
		}
		again, err := decode(first)
		if err != nil {
			t.Fatalf("decode of %s: %v", first, err)
		}
		if second, err := again.encode(); err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%s became %s, %v", first, second, err)
		}
	})
}
