package fctest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc64"
	"os"
	"slices"

	"github.com/pandastack/pandastack/internal/vmm/fake"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// snapshotVersion returns the snapshot format of a release.
func snapshotVersion(v fcapi.Version) string {
	formats := []string{12: "6.0.0", 13: "8.0.0", 14: "8.0.0", 15: "9.0.0", 16: "10.0.0", 17: "11.0.0"}
	if v.Minor < len(formats) && formats[v.Minor] != "" {
		return formats[v.Minor]
	}
	return "5.0.0"
}

// maxStateBytes bounds a state file, as in Firecracker.
const maxStateBytes = 10 << 20

const stateMagic = "fctest-state"

// stateFile is the content of a state file; a checksum follows it.
type stateFile struct {
	Magic   string
	Version string
	Shape   shape
	Bytes   int64 // size of the guest's state in memory
}

func sum(data []byte) uint64 { return crc64.Checksum(data, crc64.MakeTable(crc64.ISO)) }

func writeState(path string, s stateFile) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	data = binary.LittleEndian.AppendUint64(data, sum(data))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func readState(path string) (stateFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return stateFile{}, err
	}
	if len(data) < 8 || len(data) > maxStateBytes {
		return stateFile{}, bad("Failed to deserialize: size of the snapshot file")
	}
	body := data[:len(data)-8]
	if sum(body) != binary.LittleEndian.Uint64(data[len(data)-8:]) {
		return stateFile{}, errors.New("CRC64 validation failed")
	}
	var s stateFile
	if err := json.Unmarshal(body, &s); err != nil {
		return stateFile{}, err
	}
	if s.Magic != stateMagic {
		return stateFile{}, errors.New("invalid magic value")
	}
	return s, nil
}

func (m *monitor) create(_ string, body []byte) (any, error) {
	var c fcapi.SnapshotCreate
	if err := json.Unmarshal(body, &c); err != nil {
		return nil, bad("%v", err)
	}
	if m.memory.changed() {
		m.exit(exitBus) // the memory file that this machine maps was written or truncated
		<-m.ctx.Done()
	}
	for _, d := range m.shape.Drives {
		f, err := os.Open(d.Path)
		if err != nil {
			return nil, bad("Create snapshot error: %v", err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return nil, bad("Create snapshot error: %v", err)
		}
	}
	_ = m.active("") // recorded in the snapshot
	saved, err := m.guest.Save()
	if err != nil {
		return nil, bad("%v", err)
	}
	if err := m.memory.put(saved); err != nil {
		return nil, err
	}
	state := stateFile{stateMagic, snapshotVersion(m.version), m.shape, int64(len(saved))}
	if err := writeState(c.State, state); err != nil {
		return nil, bad("Create snapshot error: Cannot write the state: %v", err)
	}
	if err := m.memory.save(c.Memory, c.Type != fcapi.SnapshotDiff, m.shape.Track); err != nil {
		return nil, bad("Create snapshot error: Cannot write the memory: %v", err)
	}
	m.captured = true
	return nil, nil
}

func (m *monitor) load(_ string, body []byte) (any, error) {
	var l struct {
		fcapi.SnapshotLoad
		MemoryFile string `json:"mem_file_path"`
		EnableDiff bool   `json:"enable_diff_snapshots"`
	}
	if err := json.Unmarshal(body, &l); err != nil {
		return nil, bad("%v", err)
	}
	if (l.MemoryFile != "") == (l.Memory.Type != "") {
		return nil, bad("specify either mem_backend or mem_file_path")
	}
	if l.MemoryFile != "" {
		l.Memory = fcapi.MemoryBackend{Type: fcapi.BackendFile, Path: l.MemoryFile}
	}
	m.fatal = true // from here on an error ends the process
	if err := m.restore(l.SnapshotLoad); err != nil {
		return nil, bad("Load snapshot error: %v", err)
	}
	m.fatal = false
	m.shape.Track = l.TrackDirty || l.EnableDiff
	if l.Resume {
		return nil, m.resume(false)
	}
	return nil, nil
}

// restore restores the machine of a snapshot, in the order of Firecracker.
func (m *monitor) restore(l fcapi.SnapshotLoad) error {
	s, err := readState(l.State)
	if err != nil {
		return err
	}
	have, _, _ := bytes.Cut([]byte(snapshotVersion(m.version)), []byte("."))
	major, _, _ := bytes.Cut([]byte(s.Version), []byte("."))
	if !bytes.Equal(have, major) {
		return bad("Invalid format version: %s", s.Version)
	}
	m.shape = s.Shape
	if l.HugePages != "" && l.HugePages != fcapi.PagesSnapshot {
		m.shape.HugePages = l.HugePages
	}
	if err := m.memory.restore(m.shape, l.Memory); err != nil {
		return err
	}
	saved, err := m.memory.get(s.Bytes)
	if err != nil {
		return err
	}
	for i, d := range m.shape.Drives {
		if m.shape.Sectors[i], err = openDrive(d); err != nil {
			return err
		}
	}
	for _, o := range l.Networks {
		if !slices.ContainsFunc(m.shape.Networks, func(n fcapi.NetworkInterface) bool { return n.ID == o.ID }) {
			return bad("Unknown Network Device: %s", o.ID)
		}
	}
	for i, n := range m.shape.Networks {
		for _, o := range l.Networks {
			if o.ID == n.ID {
				n.Device = o.Device
			}
		}
		m.shape.Networks[i] = n
		if err := attach(n); err != nil {
			return err
		}
	}
	if m.guest, err = fake.LoadGuest(saved); err != nil {
		return err
	}
	m.phase = fcapi.StatePaused
	if m.shape.Vsock == nil {
		return nil
	}
	if err := m.openVsock(2); err != nil { // until the guest has handled the transport reset
		return err
	}
	m.vsock.guestStarted(m.guest, guestPort(m.shape.Args), 2)
	m.vsock.dropNext(m.version)
	if m.version == (fcapi.Version{Major: 1, Minor: 16}) {
		m.vsock.shutdown() // in this release the host cannot reach a restored guest
	}
	return nil
}
