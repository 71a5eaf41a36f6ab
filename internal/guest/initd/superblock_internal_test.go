package initd

import (
	"encoding/binary"
	"testing"
)

func TestBytesOfASuperblock(t *testing.T) {
	made := func(change func(b []byte)) superblock {
		var b superblock
		binary.LittleEndian.PutUint16(b[0x38:], 0xef53)
		binary.LittleEndian.PutUint32(b[0x18:], 2)
		binary.LittleEndian.PutUint32(b[0x4:], 1000)
		binary.LittleEndian.PutUint32(b[0x150:], 1) // of use with a feature alone
		change(b[:])
		return b
	}
	for name, tc := range map[string]struct {
		change func(b []byte)
		want   uint64
	}{
		"of 4 KiB blocks":        {func([]byte) {}, 4096 * 1000},
		"of 1 KiB blocks":        {func(b []byte) { b[0x18] = 0 }, 1024 * 1000},
		"of many blocks":         {func(b []byte) { b[0x60] = 0x80 }, 4096 * (1000 + 1<<32)},
		"no file system":         {func(b []byte) { b[0x38] = 0 }, 0},
		"nonsense":               {func(b []byte) { b[0x18] = 60 }, 0},
		"all zeros, as a waiter": {func(b []byte) { clear(b) }, 0},
	} {
		if got := made(tc.change).bytes(); got != tc.want {
			t.Errorf("%s: %d bytes, want %d", name, got, tc.want)
		}
	}
}
