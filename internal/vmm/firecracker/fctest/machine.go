package fctest

import (
	"cmp"
	"encoding/json"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/vmm/fake"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// shape is everything that a snapshot contains, apart from memory.
type shape struct {
	VCPUs     int
	MemoryMiB int
	HugePages string
	Kernel    string
	Args      string
	Track     bool `json:"-"` // not part of a snapshot
	Drives    []fcapi.Drive
	Sectors   []int64 // sizes that the guest knows
	Networks  []fcapi.NetworkInterface
	Vsock     *fcapi.Vsock
	Entropy   bool
	Balloon   *fcapi.Balloon
	Hotplug   *fcapi.HotplugStatus
	Metadata  []string // interfaces with access to the metadata service
	Active    bool     // the guest has loaded its drivers
}

// bytes returns the size of guest memory including hotpluggable memory.
func (s shape) bytes() int64 {
	mib := s.MemoryMiB
	if s.Hotplug != nil {
		mib += s.Hotplug.TotalMiB
	}
	return int64(mib) << 20
}

func (s shape) pageBytes() int64 {
	if s.HugePages == fcapi.PagesHuge {
		return 2 << 20
	}
	return 4096
}

func (m *monitor) putBoot(_ string, body []byte) (any, error) {
	var b fcapi.BootSource
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, bad("%v", err)
	}
	for _, path := range []string{b.Kernel, b.Initrd} {
		if path == "" {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, bad("The kernel file cannot be opened: %v", err)
		}
		_ = f.Close() // was only opened to check that it exists
	}
	m.shape.Kernel, m.shape.Args = b.Kernel, b.Args
	return nil, nil
}

func (m *monitor) putMachine(_ string, body []byte) (any, error) {
	var c fcapi.MachineConfig
	if err := json.Unmarshal(body, &c); err != nil {
		return nil, bad("%v", err)
	}
	if c.VCPUs < 1 || c.VCPUs > 32 || c.SMT && c.VCPUs != 1 && c.VCPUs%2 != 0 {
		return nil, bad("The vCPU number is invalid! The vCPU number can only be 1 or an even number when SMT is " +
			"enabled.")
	}
	if c.MemoryMiB < 1 || c.HugePages == fcapi.PagesHuge && c.MemoryMiB%2 != 0 {
		return nil, bad("The memory size (MiB) is invalid.")
	}
	if m.shape.Balloon != nil && m.shape.Balloon.MiB > c.MemoryMiB {
		return nil, bad("The memory size (MiB) is smaller than the previously set balloon device target size.")
	}
	m.shape.VCPUs, m.shape.MemoryMiB, m.shape.HugePages, m.shape.Track = c.VCPUs, c.MemoryMiB, c.HugePages, c.TrackDirty
	return nil, nil
}

// openDrive opens the file of a drive like the device would, uses it, and returns its size in
// sectors.
func openDrive(d fcapi.Drive) (int64, error) {
	flags := os.O_RDWR
	if d.ReadOnly {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(d.Path, flags, 0)
	if err != nil {
		return 0, bad("Unable to create the block device: BackingFile(%v)", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, bad("Unable to create the block device: %v", err)
	}
	if err := accessDrive(f, d.ReadOnly, st.Size()); err != nil {
		return 0, bad("Unable to use the block device: %v", err)
	}
	return st.Size() / 512, nil
}

// accessDrive accesses a drive like a guest, without changing it: it reads both ends and writes one of them
// back.
func accessDrive(f *os.File, readOnly bool, size int64) error {
	buf := make([]byte, min(size, 4096))
	if _, err := f.ReadAt(buf, size-int64(len(buf))); err != nil {
		return err
	}
	if _, err := f.ReadAt(buf, 0); err != nil || readOnly {
		return err
	}
	_, err := f.WriteAt(buf, 0)
	return err
}

func (m *monitor) putDrive(id string, body []byte) (any, error) {
	var d fcapi.Drive
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, bad("%v", err)
	}
	if d.ID != id {
		return nil, bad("The id from the path does not match the id from the body!")
	}
	for _, other := range m.shape.Drives {
		if other.Root && d.Root {
			return nil, bad("A root block device already exists!")
		}
	}
	sectors, err := openDrive(d)
	if err != nil {
		return nil, err
	}
	m.shape.Drives, m.shape.Sectors = append(m.shape.Drives, d), append(m.shape.Sectors, sectors)
	return nil, nil
}

func (m *monitor) patchDrive(id string, body []byte) (any, error) {
	var p fcapi.DrivePatch
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, bad("%v", err)
	}
	if p.Path == "" && p.Limiter == nil {
		return nil, bad("Running method expected different backend.")
	}
	for i, d := range m.shape.Drives {
		if d.ID != id || p.ID != id {
			continue
		}
		if p.Path != "" {
			d.Path = p.Path
			sectors, err := openDrive(d)
			if err != nil {
				return nil, err
			}
			m.shape.Sectors[i] = sectors
		}
		if p.Limiter != nil {
			d.Limiter = p.Limiter
		}
		m.shape.Drives[i] = d
		return nil, nil
	}
	return nil, bad("Unable to patch the block device: %s not found", id)
}

// attach opens the tap of a network interface like the device would.
func attach(n fcapi.NetworkInterface) error {
	if n.MAC != "" {
		if _, err := net.ParseMAC(n.MAC); err != nil {
			return bad("invalid MAC address %q", n.MAC)
		}
	}
	if err := attachTap(n.Device); err != nil {
		return bad("Cannot create the network device: Open tap device failed: %v", err)
	}
	return nil
}

func (m *monitor) putNetwork(id string, body []byte) (any, error) {
	var n fcapi.NetworkInterface
	if err := json.Unmarshal(body, &n); err != nil {
		return nil, bad("%v", err)
	}
	if n.ID != id {
		return nil, bad("The id from the path does not match the id from the body!")
	}
	if err := attach(n); err != nil {
		return nil, err
	}
	m.shape.Networks = append(m.shape.Networks, n)
	return nil, nil
}

func (m *monitor) patchNetwork(id string, body []byte) (any, error) {
	var p fcapi.NetworkPatch
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, bad("%v", err)
	}
	for i, n := range m.shape.Networks {
		if n.ID == id && p.ID == id {
			if p.In != nil {
				n.In = p.In
			}
			if p.Out != nil {
				n.Out = p.Out
			}
			m.shape.Networks[i] = n
			return nil, nil
		}
	}
	return nil, bad("Invalid interface ID: %s", id)
}

func (m *monitor) putMetadataService(_ string, body []byte) (any, error) {
	var s fcapi.MetadataService
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, bad("%v", err)
	}
	if len(s.Networks) == 0 {
		return nil, bad("The list of network interface IDs that allow forwarding MMDS requests is empty.")
	}
	for _, id := range s.Networks {
		if !slices.ContainsFunc(m.shape.Networks, func(n fcapi.NetworkInterface) bool { return n.ID == id }) {
			return nil, bad(
				"The list of network interface IDs provided contains at least one ID that does not correspond to " +
					"any existing network interface.",
			)
		}
	}
	m.shape.Metadata = s.Networks
	return nil, nil
}

func (m *monitor) putMetadata(_ string, body []byte) (any, error) {
	if !json.Valid(body) {
		return nil, bad("The MMDS data store must be valid JSON.")
	}
	if m.phase != fcapi.StateNone && m.shape.Metadata == nil {
		return nil, bad("The MMDS data store is not initialized.")
	}
	m.metadata = body
	return nil, nil
}

func (m *monitor) putVsock(_ string, body []byte) (any, error) {
	var v fcapi.Vsock
	if err := json.Unmarshal(body, &v); err != nil {
		return nil, bad("%v", err)
	}
	if m.vsock != nil { // the device is replaced
		if err := errors.Join(m.vsock.l.Close(), os.Remove(m.shape.Vsock.Path)); err != nil {
			return nil, bad("Cannot create backend for vsock device: %v", err)
		}
	}
	m.shape.Vsock = &v
	return nil, m.openVsock(0)
}

// defaultMemoryMiB is the memory of a machine without a configuration.
const defaultMemoryMiB = 128

func (m *monitor) putBalloon(_ string, body []byte) (any, error) {
	var b fcapi.Balloon
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, bad("%v", err)
	}
	if b.MiB > cmp.Or(m.shape.MemoryMiB, defaultMemoryMiB) {
		return nil, bad("Amount of pages requested cannot fit in the memory of the machine.")
	}
	m.shape.Balloon = &b
	return nil, nil
}

// active returns an error if the guest's driver of a device cannot be active yet.
func (m *monitor) active(device string) error {
	if m.shape.Active || m.vsock != nil && m.vsock.wasServed() {
		m.shape.Active = true
		return nil
	}
	return bad("%s", device)
}

func (m *monitor) patchBalloon(_ string, body []byte) (any, error) {
	if m.shape.Balloon == nil {
		return nil, bad("No balloon device found.")
	}
	var s fcapi.BalloonSize
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, err
	}
	if s.MiB < 0 || s.MiB >= m.shape.MemoryMiB {
		return nil, bad("Amount of pages requested cannot fit in the balloon.")
	}
	if err := m.active("Device not activated yet."); err != nil {
		return nil, err
	}
	m.shape.Balloon.MiB = s.MiB
	return nil, m.memory.release(int64(s.MiB) << 20)
}

func (m *monitor) putHotplug(_ string, body []byte) (any, error) {
	h := fcapi.HotplugStatus{SlotMiB: 128, BlockMiB: 2}
	if err := json.Unmarshal(body, &h); err != nil {
		return nil, bad("%v", err)
	}
	switch {
	case h.BlockMiB < 2:
		return nil, bad("Block size must not be lower than 2 MiB")
	case h.BlockMiB&(h.BlockMiB-1) != 0:
		return nil, bad("Block size must be a power of 2")
	case h.SlotMiB < 128:
		return nil, bad("Slot size must not be lower than 128 MiB")
	case h.SlotMiB%h.BlockMiB != 0:
		return nil, bad("Slot size must be a multiple of block size (%d MiB)", h.BlockMiB)
	case h.TotalMiB < h.SlotMiB:
		return nil, bad("Total size must not be lower than slot size (%d MiB)", h.SlotMiB)
	case h.TotalMiB%h.SlotMiB != 0:
		return nil, bad("Total size must be a multiple of slot size (%d MiB)", h.SlotMiB)
	}
	m.shape.Hotplug = &h
	return nil, nil
}

func (m *monitor) patchHotplug(_ string, body []byte) (any, error) {
	h := m.shape.Hotplug
	if h == nil {
		return nil, bad("No memory hotplug device found.")
	}
	var s fcapi.HotplugSize
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, bad("%v", err)
	}
	if s.RequestedMiB > h.TotalMiB || s.RequestedMiB%h.BlockMiB != 0 {
		return nil, bad("Size %d is invalid: it must be a multiple of block size and less than the total size",
			s.RequestedMiB)
	}
	if err := m.active("Device is not active"); err != nil {
		return nil, err
	}
	h.RequestedMiB, h.PluggedMiB = s.RequestedMiB, s.RequestedMiB
	return nil, nil
}

func (m *monitor) getHotplug(string, []byte) (any, error) {
	if m.shape.Hotplug == nil {
		return nil, bad("No memory hotplug device found.")
	}
	return *m.shape.Hotplug, nil
}

// channelArgument is the kernel parameter with the port on which the guest listens.
const channelArgument = "pandastack.channel=vsock:"

func (m *monitor) act(_ string, body []byte) (any, error) {
	var a struct {
		Type string `json:"action_type"`
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, bad("%v", err)
	}
	if a.Type != "InstanceStart" {
		return nil, booted(m)
	}
	if err := unbooted(m); err != nil {
		return nil, err
	}
	if m.shape.Kernel == "" {
		return nil, bad("Cannot start microvm without kernel configuration.")
	}
	magic := make([]byte, 4)
	f, err := os.Open(m.shape.Kernel)
	if err != nil {
		return nil, bad("%v", err)
	}
	defer f.Close()
	if _, err := f.ReadAt(magic, 0); err != nil || string(magic) != "\x7fELF" && !m.version.AtLeast(1, 17) {
		return nil, bad(
			"Cannot load kernel due to invalid memory configuration or invalid kernel image: Invalid ELF magic number",
		)
	}
	if err := m.memory.fresh(m.shape); err != nil {
		return nil, err
	}
	m.guest = fake.NewGuest()
	m.guest.Pause(false)
	m.phase = fcapi.StateRunning
	if m.vsock != nil {
		m.vsock.guestStarted(m.guest, guestPort(m.shape.Args), 3) // a booted guest does not listen immediately
	}
	return nil, nil
}

// guestPort returns the port in the kernel command line, or 0 if there is none.
func guestPort(args string) int {
	for word := range strings.FieldsSeq(args) {
		if n, ok := strings.CutPrefix(word, channelArgument); ok {
			port, _ := strconv.Atoi(n) // 0 if it is invalid
			return port
		}
	}
	return 0
}

func (m *monitor) patchState(_ string, body []byte) (any, error) {
	var s struct {
		State string `json:"state"`
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, bad("%v", err)
	}
	if s.State == "Paused" {
		m.phase = fcapi.StatePaused
		m.guest.Pause(true)
		m.vsock.pause(true)
		return nil, nil
	}
	return nil, m.resume(true)
}

// resume resumes the guest. again reports that it ran in this process before.
func (m *monitor) resume(again bool) error {
	was := m.phase
	m.phase = fcapi.StateRunning
	m.guest.Pause(false)
	if m.vsock == nil {
		return nil
	}
	if again && was == fcapi.StatePaused && m.captured {
		m.vsock.reset() // at the snapshot, the guest got a transport reset
		m.vsock.dropNext(m.version)
	}
	m.captured = false
	m.vsock.pause(false)
	if again && m.version.Major == 1 && m.version.Minor == 16 {
		m.vsock.shutdown() // in these releases the host cannot reach a guest after pause and resume
	}
	return nil
}
