package guestapi

// VolumeMount is a disk of the machine with a volume on it, and where to mount its ext4 file system.
type VolumeMount struct {
	Disk     int    // 1 is the disk behind the root disk, /dev/vdb
	Dir      string // absolute path; made if it is missing
	ReadOnly bool
	// Bytes is the size of the volume: the disk may have had another size a moment ago. A smaller file system that is
	// mounted with write access grows to it.
	Bytes int64
	// Check checks the file system first: it was not unmounted.
	Check bool
}

// VolumeAction is what a VolumeRequest asks for.
type VolumeAction uint8

// The actions on volumes. All but VolumeMountAt are of a volume that is mounted.
const (
	VolumeMountAt VolumeAction = 1
	// VolumeUnmount writes a volume back and unmounts it. ErrInUse: programs use it. With Force those that do are
	// killed, and what still keeps the volume after that loses it.
	VolumeUnmount VolumeAction = 2
	// VolumeSync writes back what programs wrote.
	VolumeSync VolumeAction = 3
	// VolumeGrow grows the file system to the disk, which has Bytes bytes or is about to.
	VolumeGrow VolumeAction = 4
	// VolumeLastCheck only reports.
	VolumeLastCheck VolumeAction = 5
)

// VolumeRequest is an action on a volume.
type VolumeRequest struct {
	Action VolumeAction
	Volume VolumeMount
	Force  bool
}

// CheckResult is the result of checking the file system of a volume.
type CheckResult uint8

// The results of checks.
const (
	CheckNone     CheckResult = 0 // there was no check since the volume was mounted
	CheckClean    CheckResult = 1
	CheckRepaired CheckResult = 2
	CheckDamaged  CheckResult = 3
)

// MaxCheckLog bounds VolumeReport.Log, in bytes.
const MaxCheckLog = 4096

// VolumeReport is the result of an action on a volume.
type VolumeReport struct {
	Check CheckResult // of the last mount
	Log   string      // the end of what the check printed
	// Clean: nothing of the file system is in use after VolumeUnmount, and all of it is written back.
	Clean bool
}

// AppendVolumeRequest encodes r.
func AppendVolumeRequest(b []byte, r *VolumeRequest) []byte {
	w := buffer(b)
	w.u8(uint8(r.Action))
	w.volume(&r.Volume)
	w.bool(r.Force)
	return w
}

// ParseVolumeRequest decodes a request that AppendVolumeRequest encoded.
func ParseVolumeRequest(b []byte) (VolumeRequest, error) {
	p := parser{b: b}
	r := VolumeRequest{Action: VolumeAction(p.u8()), Volume: p.volume(), Force: p.bool()}
	return r, p.end()
}

// AppendVolumeReport encodes r.
func AppendVolumeReport(b []byte, r *VolumeReport) []byte {
	w := buffer(b)
	w.u8(uint8(r.Check))
	w.str(r.Log[max(0, len(r.Log)-MaxCheckLog):])
	w.bool(r.Clean)
	return w
}

// ParseVolumeReport decodes a report that AppendVolumeReport encoded.
func ParseVolumeReport(b []byte) (VolumeReport, error) {
	p := parser{b: b}
	r := VolumeReport{Check: CheckResult(p.u8()), Log: p.utf8(MaxCheckLog), Clean: p.bool()}
	if r.Check > CheckDamaged {
		p.fail()
	}
	return r, p.end()
}

func (b *buffer) volume(v *VolumeMount) {
	b.uint(uint64(v.Disk))
	b.str(v.Dir)
	b.bool(v.ReadOnly)
	b.int(v.Bytes)
	b.bool(v.Check)
}

func (p *parser) volume() VolumeMount {
	return VolumeMount{
		Disk: int(p.uintMax(maxListItems)), Dir: p.str(MaxPath), ReadOnly: p.bool(), Bytes: p.count(), Check: p.bool(),
	}
}
