package qemu

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// errorPolicy are the -drive options for errors of the host's disk. QEMU stops the guest when there is no space, and
// repeats the write when it continues. It tells the guest of any other error.
const errorPolicy = ",werror=enospc,rerror=report"

var (
	_ vmm.SpaceWaiter = (*machine)(nil)
	_ vmm.Halter      = (*machine)(nil)
)

// blockError is the data of the event BLOCK_IO_ERROR.
type blockError struct {
	Device    string `json:"device"`
	Operation string `json:"operation"`
	Action    string `json:"action"` // "stop": QEMU stops the guest; "report": the guest gets the error
	NoSpace   bool   `json:"nospace"`
	Reason    string `json:"reason"`
}

// diskFailed handles an error of the host's disk. Events are in the order of what happened: of the writes that failed
// before the guest continues, the events come before that of RESUME.
func (m *machine) diskFailed(data json.RawMessage) {
	var e blockError
	if err := json.Unmarshal(data, &e); err != nil { // the monitor is not trusted
		e = blockError{Reason: "the monitor's message cannot be read"}
	}
	if e.Action == "stop" && e.NoSpace {
		m.stoppedForSpace()
		return
	}
	m.mu.Lock()
	m.diskErrors++
	first := m.diskErrors == 1
	m.mu.Unlock()
	if first { // a guest can repeat it as often as it likes
		m.driver.config.Log.Warn("disk of a machine failed", "machine", m.spec.ID,
			"disk", fmt.Sprintf("%.16q", e.Device), "operation", fmt.Sprintf("%.16q", e.Operation),
			"err", fmt.Sprintf("%.200q", e.Reason))
	}
}

// stoppedForSpace records that the monitor has stopped the guest.
func (m *machine) stoppedForSpace() {
	m.mu.Lock()
	m.waits = true
	m.mu.Unlock()
	select {
	case m.noSpace <- struct{}{}:
	default: // the token of the last event was not taken
	}
}

// OutOfSpace implements vmm.SpaceWaiter.
func (m *machine) OutOfSpace() <-chan struct{} { return m.noSpace }

// WaitsForSpace implements vmm.SpaceWaiter.
func (m *machine) WaitsForSpace() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waits
}

// Halt implements vmm.Halter.
func (m *machine) Halt(ctx context.Context) error {
	switch m.Phase() {
	case vmmproc.Paused:
		return nil
	case vmmproc.Prepared:
		return fmt.Errorf("halt machine %s: it has not been loaded", m.spec.ID)
	}
	return m.halt(ctx)
}
