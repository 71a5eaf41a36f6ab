package appedge

import (
	"bytes"
	"testing"
)

// The ends of frames are found however the bytes are cut.
func TestFrames(t *testing.T) {
	stream := []byte("HTTP/1.1 101 Switching Protocols\r\nA: b\r\r\n\r\n")
	ends := map[int]bool{len(stream): true}
	frame := func(head []byte, payload int) {
		stream = append(append(stream, head...), make([]byte, payload)...)
		ends[len(stream)] = true
	}
	frame([]byte{0x81, 0}, 0)
	frame([]byte{0x81, 5}, 5)
	frame([]byte{0x82, 126, 1, 0}, 256)
	frame([]byte{0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0}, 65536)
	frame([]byte{0x81, 0x80 | 3, 1, 2, 3, 4}, 3)
	frame([]byte{0x89, 0}, 0)
	for _, step := range []int{1, 2, 3, 7, 1000, len(stream)} {
		var f frames
		for at := 0; at < len(stream); {
			p := stream[at:min(at+step, len(stream))]
			n := f.next(p)
			if n < 1 || n > len(p) {
				t.Fatalf("step %d: next took %d of %d bytes", step, n, len(p))
			}
			at += n
			if f.between() != ends[at] {
				t.Fatalf("step %d: between is %v at %d", step, f.between(), at)
			}
		}
	}
}

// Nothing that a program sends makes the edge fail or lose count of the bytes.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("HTTP/1.1 101 x\r\n\r\n\x81\x05hello"), 3)
	f.Add([]byte("\r\n\r\n\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff12"), 1)
	f.Fuzz(func(t *testing.T, stream []byte, step int) {
		step = max(1, step)
		var cut, whole frames
		whole.skip(stream)
		for rest := stream; len(rest) > 0; {
			p := rest[:min(step, len(rest))]
			n := cut.next(p)
			if n < 1 || n > len(p) || len(cut.head) > 14 {
				t.Fatalf("next took %d of %d bytes", n, len(p))
			}
			rest = rest[n:]
		}
		if cut.started != whole.started || cut.rest != whole.rest || !bytes.Equal(cut.head, whole.head) {
			t.Fatal("the state depends on how the bytes were cut")
		}
	})
}
