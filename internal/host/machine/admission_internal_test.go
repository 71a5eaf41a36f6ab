package machine

import (
	"errors"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

func checkErr(t *testing.T, got, want error) {
	t.Helper()
	if want == nil && got != nil || !errors.Is(got, want) {
		t.Fatalf("error %v, want %v", got, want)
	}
}

func testLedger(totalMiB, availableMiB int64) *ledger {
	return &ledger{
		adm:          Admission{ReserveMiB: 1000, OverheadMiB: 100, Share: 0.5, Overcommit: 2},
		host:         func() (int64, int64, error) { return totalMiB * mib, availableMiB * mib, nil },
		reservations: map[hostapi.MachineID]reservation{},
	}
}

func TestAdmissionByAvailableMemory(t *testing.T) {
	l := testLedger(100000, 3000) // 2000 MiB can be used, and half of each reservation of 1000 is expected to be
	for _, id := range []hostapi.MachineID{"a", "b", "c", "d"} {
		checkErr(t, l.reserve(id, 900), nil)
	}
	err := l.reserve("e", 900)
	checkErr(t, err, hostapi.ErrNoCapacity)
	if !strings.Contains(err.Error(), "needs 1000 MiB") ||
		!strings.Contains(err.Error(), "0 MiB can still be reserved") {
		t.Errorf("error = %q, want the numbers in it", err)
	}
	checkErr(t, l.reserve("a", 900), nil) // replaces the first
	l.setUsed("a", 500*mib)               // used: it is not in the available memory any more
	checkErr(t, l.reserve("e", 900), nil)
	l.release("b")
	checkErr(t, l.reserve("f", 900), nil)
	checkErr(t, l.reserve("g", 1), hostapi.ErrNoCapacity)
}

func TestAdmissionByReservedMemory(t *testing.T) {
	l := testLedger(2000, 100000) // 1000 MiB, twice
	checkErr(t, l.reserve("a", 900), nil)
	l.grant("b", 900)
	checkErr(t, l.reserve("c", 1), hostapi.ErrNoCapacity)
}

func TestFree(t *testing.T) {
	free, total, err := testLedger(100000, 3000).free()
	checkErr(t, err, nil)
	if free != 4000 || total != 100000 {
		t.Errorf("free %d of %d, want 4000 of 100000", free, total)
	}
	if _, _, err := ReadMeminfo(); err != nil {
		t.Error(err)
	}
}
