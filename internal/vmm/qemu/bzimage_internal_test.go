package qemu

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

func TestPlaceInitramfs(t *testing.T) {
	bzImage := func(limit uint32) []byte {
		b := bytes.Repeat([]byte{7}, 8192)
		copy(b[headerMagicAt:], "HdrS")
		binary.LittleEndian.PutUint32(b[initrdAddrMaxAt:], limit)
		return b
	}
	const usual = 0x7fffffff
	for name, c := range map[string]struct {
		kernel    []byte
		memoryMiB int
		want      []byte
	}{
		"end_of_memory":      {bzImage(usual), 2048, bzImage(usual - 64<<10)},
		"less_memory":        {bzImage(usual), 2046, nil},
		"more_memory":        {bzImage(usual), 2050, nil},
		"small":              {bzImage(usual), 512, nil},
		"end_of_low_memory":  {bzImage(0xbfffffff), 4096, bzImage(0xbfffffff - 64<<10)},
		"large":              {bzImage(usual), 8192, nil},
		"no_limit_to_lower":  {bzImage(0), 2048, nil},
		"not_a_bzimage":      {bytes.Repeat([]byte{7}, 8192), 2048, nil},
		"shorter_than_magic": {[]byte("short"), 2048, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from, to := filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "kernel")
			if err := os.WriteFile(from, c.kernel, 0o444); err != nil {
				t.Fatal(err)
			}
			kernel, err := os.Open(from)
			if err != nil {
				t.Fatal(err)
			}
			defer kernel.Close()
			got, err := placeInitramfs(kernel, c.memoryMiB, to)
			if err != nil {
				t.Fatal(err)
			}
			defer got.Close()
			if same := got == kernel; same != (c.want == nil) {
				t.Fatalf("got the kernel itself %v, want %v", same, c.want == nil)
			}
			if content, err := os.ReadFile(got.Name()); err != nil || c.want != nil && !bytes.Equal(content, c.want) {
				t.Errorf("got another copy than the kernel with a lower limit, %v", err)
			}
			if content, err := os.ReadFile(from); err != nil || !bytes.Equal(content, c.kernel) {
				t.Errorf("got a changed kernel, %v, want it as it was", err)
			}
		})
	}
}
