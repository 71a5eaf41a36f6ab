package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// MemoryPressure returns the part of the last ten seconds in which programs waited for memory.
type MemoryPressure func() (percent float64, err error)

// pressureFile is documented in Documentation/accounting/psi.rst of the kernel.
const pressureFile = "/proc/pressure/memory"

// ReadPressure is MemoryPressure of this computer. Without pressure stall information in the kernel it is 0.
func ReadPressure() (percent float64, err error) {
	data, err := os.ReadFile(pressureFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EOPNOTSUPP) { // not built in, or switched off at boot
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return parsePressure(string(data))
}

// parsePressure returns the first average of the line "some avg10=0.00 avg60=0.00 avg300=0.00 total=0".
func parsePressure(text string) (percent float64, err error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "some avg10=")
		if !ok {
			continue
		}
		value, _, _ := strings.Cut(rest, " ")
		if percent, err = strconv.ParseFloat(value, 64); err == nil && percent >= 0 && percent <= 100 {
			return percent, nil
		}
	}
	return 0, fmt.Errorf("%s does not say how long programs waited: %.100q", pressureFile, text)
}

// isPressed reports whether programs wait for memory for so long that nothing is admitted.
func (a Admission) isPressed(percent float64) bool {
	return a.MaxPressure > 0 && percent >= a.MaxPressure
}

// checkPressure returns ErrNoCapacity while programs wait for memory.
func (l *ledger) checkPressure() error {
	percent, err := l.pressure()
	if err == nil && l.adm.isPressed(percent) {
		err = fmt.Errorf("programs on the host waited for memory for %.0f %% of the last ten seconds, "+
			"and %.0f %% is the limit: %w", percent, l.adm.MaxPressure, hostapi.ErrNoCapacity)
	}
	return err
}
