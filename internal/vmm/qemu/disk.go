package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

var (
	_ vmm.DiskResizer = (*machine)(nil)
	_ vmm.DiskSwapper = (*machine)(nil)
)

// diskID returns the ID of the drive of disk n.
func diskID(n int) string { return "d" + strconv.Itoa(n) }

// ResizeDisk implements vmm.DiskResizer.
func (m *machine) ResizeDisk(ctx context.Context, n int) error {
	if m.Phase() == vmmproc.Prepared || n < 0 || n >= len(m.spec.Disks) {
		return fmt.Errorf("resize disk %d of machine %s: it has not been loaded, or has no such disk", n, m.spec.ID)
	}
	info, err := os.Stat(m.spec.Disks[n].Path)
	if err != nil {
		return fmt.Errorf("resize disk %d of machine %s: %w", n, m.spec.ID, err)
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "resize of a disk")
	defer cancel()
	if err := m.announceSize(ctx, n, info.Size()); err != nil {
		return fmt.Errorf("resize disk %d of machine %s: %w", n, m.spec.ID, err)
	}
	return vmmproc.WriteRecord(m.spec.Dir, m.record)
}

// announceSize makes a disk's size known to the guest and to later captures.
func (m *machine) announceSize(ctx context.Context, n int, bytes int64) error {
	if err := m.do(ctx, "block_resize", map[string]any{"device": diskID(n), "size": bytes}, nil); err != nil {
		return err
	}
	m.record.DiskBytes[n] = bytes
	m.manifest.DiskBytes = m.record.DiskBytes
	return nil
}

// firstDisk is the number of the device of disk 0 among those without an ID: the channel's two devices come first.
const firstDisk = 2

// blockNode is what a drive's device reads and writes.
type blockNode struct {
	name string // QEMU's own names begin with '#'
	set  int    // fd set of its file; 0: not known
}

// SwapDisk implements vmm.DiskSwapper. The monitor gets the open files of the disk, makes a node of them and gives it
// to the drive's device. Everything else of the drive, such as its rate limit, stays. A restore stub gets the files
// only: the monitor that it becomes finds them where those of the disk in the checkpoint were.
func (m *machine) SwapDisk(ctx context.Context, n int, disk vmm.Disk) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("swap disk %d of machine %s: %w", n, m.spec.ID, err)
		}
	}()
	if n < 0 || n >= len(m.spec.Disks) {
		return errors.New("it has no such disk")
	}
	if disk.ReadOnly != m.spec.Disks[n].ReadOnly {
		return errors.New("a disk that is read-only cannot become writable, nor the other way round")
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "swap of a disk")
	defer cancel()
	m.mu.Lock()
	stub := m.stub
	m.mu.Unlock()
	if stub == nil {
		err = m.swapDisk(ctx, n, disk)
	} else if bytes, sent := stub.swapDisk(n, disk); sent != nil {
		err = m.WithExitReason(ctx, sent)
	} else {
		m.useDisk(n, disk, bytes)
	}
	if err != nil {
		return err
	}
	return vmmproc.WriteRecord(m.spec.Dir, m.record)
}

// setFlushes makes the flushes of disks that are not volatile reach the medium in a monitor that was restored from the
// checkpoint of another, whose disks may have been volatile.
func (m *machine) setFlushes(ctx context.Context) error {
	if !slices.ContainsFunc(m.spec.Disks, func(d vmm.Disk) bool { return !d.Volatile && !d.Empty && !d.ReadOnly }) {
		return nil
	}
	all, err := m.blocks(ctx)
	if err != nil {
		return err
	}
	for n, d := range m.spec.Disks {
		if d.Volatile || d.Empty || d.ReadOnly {
			continue
		}
		for _, b := range all {
			if b.Device != diskID(n) || !b.Inserted.Cache.NoFlush {
				continue
			}
			if err := m.swapDisk(ctx, n, d); err != nil {
				return fmt.Errorf("flush disk %d: %w", n, err)
			}
		}
	}
	return nil
}

// swapDisk replaces a disk of a monitor that has a guest.
func (m *machine) swapDisk(ctx context.Context, n int, disk vmm.Disk) error {
	before, err := m.nodeOf(ctx, n)
	if err != nil {
		return err
	}
	after, bytes, err := m.addNode(ctx, n, disk)
	if err != nil {
		return err
	}
	device := fmt.Sprintf("/machine/peripheral-anon/device[%d]", firstDisk+n)
	var drive string
	if err := m.do(ctx, "qom-get", map[string]any{"path": device, "property": "drive"}, &drive); err != nil {
		return err
	}
	if drive != diskID(n) {
		return fmt.Errorf("%s has drive %q, want %q", device, drive, diskID(n))
	}
	set := map[string]any{"path": device, "property": "drive", "value": after.name}
	if err := m.do(ctx, "qom-set", set, nil); err != nil {
		return errors.Join(err, m.removeNode(ctx, after))
	}
	if m.Phase() == vmmproc.Prepared { // Load announces the size
		m.useDisk(n, disk, bytes)
		return m.removeNode(ctx, before)
	}
	known := m.record.DiskBytes[n]
	m.useDisk(n, disk, known) // until the guest knows the size the call can be repeated
	if err := m.announceSize(ctx, n, bytes); err != nil {
		return err
	}
	return m.removeNode(ctx, before)
}

// useDisk records that the monitor has another disk n, whose rate is that of the one before. Captures find its files by
// path.
func (m *machine) useDisk(n int, disk vmm.Disk, bytes int64) {
	m.spec.Disks, m.record.DiskBytes = slices.Clone(m.spec.Disks), slices.Clone(m.record.DiskBytes)
	disk.Rate = m.spec.Disks[n].Rate
	m.spec.Disks[n], m.record.DiskBytes[n] = disk, bytes
}

// block is a drive as query-block returns it.
type block struct {
	Device   string `json:"device"`
	Inserted struct {
		Node  string `json:"node-name"`
		File  string `json:"file"`
		Cache struct {
			NoFlush bool `json:"no-flush"`
		} `json:"cache"`
	} `json:"inserted"`
}

func (m *machine) blocks(ctx context.Context) (all []block, err error) {
	err = m.do(ctx, "query-block", nil, &all)
	return all, err
}

// nodeOf returns the node of disk n.
func (m *machine) nodeOf(ctx context.Context, n int) (blockNode, error) {
	all, err := m.blocks(ctx)
	if err != nil {
		return blockNode{}, err
	}
	for _, b := range all {
		if b.Device == diskID(n) {
			set, _ := strconv.Atoi(strings.TrimPrefix(b.Inserted.File, "/dev/fdset/")) // 0 if it is no fd set
			return blockNode{b.Inserted.Node, set}, nil
		}
	}
	return blockNode{}, fmt.Errorf("the monitor has no drive %s", diskID(n))
}

// unusedSet returns the number of an fd set that the monitor does not have. It is never 0, which stands for none here;
// the monitor's own choice would be the lowest unused number.
func (m *machine) unusedSet(ctx context.Context) (int, error) {
	var sets []struct {
		ID int `json:"fdset-id"`
	}
	if err := m.do(ctx, "query-fdsets", nil, &sets); err != nil {
		return 0, err
	}
	highest := 0
	for _, s := range sets {
		highest = max(highest, s.ID)
	}
	return highest + 1, nil
}

// addNode gives a disk's files to the monitor and makes a node of them.
func (m *machine) addNode(ctx context.Context, n int, disk vmm.Disk) (node blockNode, bytes int64, err error) {
	if node.set, err = m.unusedSet(ctx); err != nil {
		return node, 0, err
	}
	modes := []int{os.O_RDONLY, os.O_RDWR}
	if disk.ReadOnly {
		modes = modes[:1]
	}
	for _, mode := range modes {
		f, err := os.OpenFile(disk.Path, mode, 0)
		if err != nil {
			return node, 0, err
		}
		info, err := f.Stat()
		if err == nil {
			bytes = info.Size()
			err = m.do(ctx, "add-fd", map[string]int{"fdset-id": node.set}, nil, f)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return node, 0, err
		}
	}
	node.name = fmt.Sprintf("%s-%d", diskID(n), time.Now().UnixNano())
	args := map[string]any{
		"driver": "raw", "node-name": node.name, "read-only": disk.ReadOnly, "discard": "unmap",
		"cache": map[string]bool{"direct": false, "no-flush": disk.Volatile},
		"file": map[string]any{
			"driver": "file", "filename": "/dev/fdset/" + strconv.Itoa(node.set), "read-only": disk.ReadOnly,
			"discard": "unmap", "cache": map[string]bool{"direct": false, "no-flush": disk.Volatile},
		},
	}
	if err := m.do(ctx, "blockdev-add", args, nil); err != nil {
		return node, 0, errors.Join(err, m.removeSet(ctx, node))
	}
	return node, bytes, nil
}

// removeNode removes a node that no device uses. QEMU removes its own by itself.
func (m *machine) removeNode(ctx context.Context, node blockNode) error {
	if !strings.HasPrefix(node.name, "#") {
		if err := m.do(ctx, "blockdev-del", map[string]string{"node-name": node.name}, nil); err != nil {
			return err
		}
	}
	return m.removeSet(ctx, node)
}

func (m *machine) removeSet(ctx context.Context, node blockNode) error {
	if node.set == 0 {
		return nil
	}
	return m.do(ctx, "remove-fd", map[string]int{"fdset-id": node.set}, nil)
}
