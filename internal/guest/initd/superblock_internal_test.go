package initd

import (
	"encoding/binary"
	"testing"
)

func TestSuperblockBytes(t *testing.T) {
	made := func(change func(b []byte)) superblock {
		var b superblock
		binary.LittleEndian.PutUint16(b[0x38:], 0xef53)
		binary.LittleEndian.PutUint32(b[0x18:], 2)
		binary.LittleEndian.PutUint32(b[0x4:], 1000)
		binary.LittleEndian.PutUint32(b[0x150:], 1) // read only with the 64-bit feature
		change(b[:])
		return b
	}
	for name, tc := range map[string]struct {
		change func(b []byte)
		want   uint64
	}{
		"4 KiB blocks":            {func([]byte) {}, 4096 * 1000},
		"1 KiB blocks":            {func(b []byte) { b[0x18] = 0 }, 1024 * 1000},
		"more than 2^32 blocks":   {func(b []byte) { b[0x60] = 0x80 }, 4096 * (1000 + 1<<32)},
		"no magic number":         {func(b []byte) { b[0x38] = 0 }, 0},
		"block size out of range": {func(b []byte) { b[0x18] = 60 }, 0},
		"all zeros":               {func(b []byte) { clear(b) }, 0},
	} {
		if got := made(tc.change).bytes(); got != tc.want {
			t.Errorf("%s: bytes() = %d, want %d", name, got, tc.want)
		}
	}
}
