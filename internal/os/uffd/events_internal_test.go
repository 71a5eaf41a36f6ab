package uffd

import "testing"

func FuzzAppendEvents(f *testing.F) {
	f.Add(make([]byte, messageBytes))
	f.Add(append([]byte{byte(Fault)}, make([]byte, 2*messageBytes-1)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		events, err := appendEvents(nil, data)
		if err == nil && len(events) > len(data)/messageBytes {
			t.Fatalf("got %d events from %d bytes, want at most one per message", len(events), len(data))
		}
		for _, e := range events {
			if e.Kind != Fault && e.Kind != Remove && e.Kind != Unmap {
				t.Fatalf("got event of unknown kind %v", e)
			}
		}
	})
}
