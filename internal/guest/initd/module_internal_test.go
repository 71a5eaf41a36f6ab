package initd

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// orderOf returns an order file with a valid checksum.
func orderOf(lines string) string {
	return fmt.Sprintf("%s%08x\n", lines, crc32.Checksum([]byte(lines), castagnoli))
}

func TestParseOrder(t *testing.T) {
	good := orderOf("00000001 virtio.ko\nfffffffe virtio_blk.ko\n")
	for name, c := range map[string]struct {
		order string
		want  []module
		err   string
	}{
		"two_modules":  {order: good, want: []module{{"virtio.ko", 1}, {"virtio_blk.ko", 0xfffffffe}}},
		"no_modules":   {order: orderOf("")},
		"empty":        {order: "", err: "it has 0 bytes"},
		"name_changed": {order: strings.Replace(good, "blk", "\x00\x00m", 1), err: "its checksum is"},
		"cut":          {order: good[:len(good)-12], err: "its checksum is"},
		"zeros":        {order: strings.Repeat("\x00", 64), err: "its checksum is"},
		"no_checksum":  {order: orderOf("virtio.ko\n"), err: `line "virtio.ko\n" is not a checksum and a name`},
		"old_format":   {order: "virtio_mmio.ko\nvirtio_blk.ko\n", err: "its checksum is"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseOrder("/modules/order", []byte(c.order))
			if c.err == "" && err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
			if want := "/modules/order: " + c.err; c.err != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("got error %v, want %q in it", err, want)
			}
		})
	}
}

func TestOpenModule(t *testing.T) {
	dir := t.TempDir()
	content := strings.Repeat("module", 1000)
	sum := crc32.Checksum([]byte(content), castagnoli)
	for name, c := range map[string]struct{ content, err string }{
		"intact":  {content: content},
		"changed": {content: strings.Replace(content, "e", "\x00", 1), err: fmt.Sprintf("not %08x", sum)},
		"cut":     {content: content[:100], err: fmt.Sprintf("not %08x", sum)},
		"missing": {err: "it is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, name+".ko")
			if c.content != "" {
				if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f, err := module{name + ".ko", sum}.open(file, make([]byte, 1000))
			if c.err == "" {
				if err != nil {
					t.Fatalf("got error %v, want none", err)
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			var damaged *damageError
			if !errors.As(err, &damaged) || !strings.Contains(err.Error(), c.err) ||
				!strings.Contains(err.Error(), file) {
				t.Errorf("got error %v, want a *damageError with %q and the file in it", err, c.err)
			}
		})
	}
}

func TestLoadModulesWithoutOrder(t *testing.T) {
	var damaged *damageError
	if err := loadModules(t.TempDir()); !errors.As(err, &damaged) {
		t.Errorf("got error %v, want a *damageError", err)
	}
}
