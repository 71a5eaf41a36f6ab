package initd

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// moduleBuffer is how much of a module is read at once.
const moduleBuffer = 64 << 10

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// module is a kernel module that the initramfs names.
type module struct {
	name string
	sum  uint32 // CRC-32C of its file
}

// A damageError reports that the initramfs differs from the one that was built. The memory it was loaded into may
// have been overwritten before the kernel unpacked it.
type damageError struct{ file, why string }

func (e *damageError) Error() string {
	return fmt.Sprintf("initramfs is damaged: %s: %s; "+
		"it was overwritten in memory, or built by another version of pandastack", e.file, e.why)
}

// parseOrder parses the file "order": a line "checksum name" for each module, and a last line with the checksum of
// the lines before it. Errors name the path file.
func parseOrder(file string, order []byte) ([]module, error) {
	const sumDigits = 8
	end := len(order) - sumDigits - 1
	if end < 0 {
		return nil, &damageError{file, fmt.Sprintf("it has %d bytes", len(order))}
	}
	want, err := parseSum(order[end : end+sumDigits])
	if got := crc32.Checksum(order[:end], castagnoli); err != nil || got != want {
		return nil, &damageError{file, fmt.Sprintf("its checksum is %08x, not %q", got, order[end:end+sumDigits])}
	}
	var list []module
	for line := range bytes.Lines(order[:end]) {
		sum, name, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		n, err := parseSum(sum)
		if !ok || err != nil {
			return nil, &damageError{file, fmt.Sprintf("line %q is not a checksum and a name", line)}
		}
		list = append(list, module{string(name), n})
	}
	return list, nil
}

// parseSum parses a checksum of eight hexadecimal digits.
func parseSum(text []byte) (uint32, error) {
	var b [4]byte
	if len(text) != hex.EncodedLen(len(b)) {
		return 0, hex.ErrLength
	}
	if _, err := hex.Decode(b[:], text); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint32(b[:]), nil
}

// loadModules checks the kernel modules in dir and loads them.
func loadModules(dir string) error {
	file := path.Join(dir, "order")
	order, err := os.ReadFile(file)
	if errors.Is(err, unix.ENOENT) {
		return &damageError{file, "it is missing"}
	}
	if err != nil {
		return fmt.Errorf("read order of modules: %w", err)
	}
	list, err := parseOrder(file, order)
	if err != nil {
		return err
	}
	buf := make([]byte, moduleBuffer)
	for _, m := range list {
		if err := m.load(path.Join(dir, m.name), buf); err != nil {
			return err
		}
	}
	return nil
}

// load checks the module at file and loads it. buf is used to read it.
func (m module) load(file string, buf []byte) error {
	f, err := m.open(file, buf)
	if err != nil {
		return err
	}
	err = unix.FinitModule(int(f.Fd()), "", 0)
	_ = f.Close() // it was only read
	if err != nil && err != unix.EEXIST {
		return fmt.Errorf("load module %s: %w", m.name, err)
	}
	return nil
}

// open opens the module at file and checks its content.
func (m module) open(file string, buf []byte) (*os.File, error) {
	f, err := os.Open(file)
	if errors.Is(err, unix.ENOENT) {
		return nil, &damageError{file, "it is missing"}
	}
	if err != nil {
		return nil, fmt.Errorf("open module %s: %w", m.name, err)
	}
	var got uint32
	for {
		n, err := f.Read(buf)
		got = crc32.Update(got, castagnoli, buf[:n])
		if n == 0 || err != nil { // a failed read leaves a checksum that does not match
			break
		}
	}
	if got != m.sum {
		_ = f.Close() // it was only read
		return nil, &damageError{file, fmt.Sprintf("its checksum is %08x, not %08x", got, m.sum)}
	}
	return f, nil
}
