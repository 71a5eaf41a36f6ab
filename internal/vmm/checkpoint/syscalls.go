package checkpoint

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// syscallTable is the list of system calls that a stub runs, with the data that they point to.
type syscallTable struct {
	at    uint64 // its address in the stub
	calls [][8]uint64
	data  []byte
}

// dataAt is the offset of the data in a table.
const dataAt = tableBytes / 2

func (t *syscallTable) call(number uint64, args ...uint64) {
	entry := [8]uint64{number}
	copy(entry[1:7], args)
	t.calls = append(t.calls, entry)
}

// addBytes adds data and returns its address.
func (t *syscallTable) addBytes(data []byte) uint64 {
	at := t.at + dataAt + uint64(len(t.data))
	t.data = append(t.data, data...)
	for len(t.data)%8 != 0 {
		t.data = append(t.data, 0)
	}
	return at
}

func (t *syscallTable) addWords(w ...uint64) uint64 {
	var raw []byte
	for _, v := range w {
		raw = binary.LittleEndian.AppendUint64(raw, v)
	}
	return t.addBytes(raw)
}

// encode returns the table as it is laid out in the stub's memory. The end of that memory stays
// free.
func (t *syscallTable) encode() ([]byte, error) {
	if 64*len(t.calls) > dataAt || len(t.data) > dataAt-pageSize {
		return nil, fmt.Errorf("%d calls and %d bytes of data do not fit", len(t.calls), len(t.data))
	}
	raw := make([]byte, 0, dataAt+len(t.data))
	for _, c := range t.calls {
		for _, v := range c {
			raw = binary.LittleEndian.AppendUint64(raw, v)
		}
	}
	raw = raw[:dataAt]
	return append(raw, t.data...), nil
}

// check returns an error for the first failed call in a table that has run.
func (t *syscallTable) check(raw []byte) error {
	for i, c := range t.calls {
		v := int64(binary.LittleEndian.Uint64(raw[64*i+56:]))
		if v < 0 && v > -pageSize {
			return fmt.Errorf("system call %d (%#x) of %d: %w", c[0], c[1:7], i, unix.Errno(-v))
		}
	}
	return nil
}
