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
		pressure:     func() (float64, error) { return 0, nil },
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

func TestMemory(t *testing.T) {
	l := testLedger(100000, 3000)
	checkErr(t, l.reserve("a", 900), nil)
	got, err := l.memory()
	checkErr(t, err, nil)
	want := Memory{TotalMiB: 100000, AvailableMiB: 3000, PromisedMiB: 1000, FreeMiB: 3000}
	if got != want {
		t.Errorf("memory() = %+v, want %+v", got, want)
	}
	if _, _, err := ReadMeminfo(); err != nil {
		t.Error(err)
	}
	if _, err := ReadPressure(); err != nil {
		t.Error(err)
	}
}

// TestDefaultOvercommit checks how much a host promises by default: one and a half times what it has for machines.
func TestDefaultOvercommit(t *testing.T) {
	l := testLedger(10768, 100000)
	l.adm = Admission{}.withDefaults()
	checkErr(t, l.reserve("a", 10000), nil)
	checkErr(t, l.reserve("b", 5000-2*48), nil)
	checkErr(t, l.reserve("c", 1), hostapi.ErrNoCapacity)
	if got, err := l.memory(); err != nil || got.FreeMiB != 0 || got.PromisedMiB != 15000 {
		t.Errorf("memory() = %+v, %v, want 15000 MiB promised and none free", got, err)
	}
}

func TestPressureStopsAdmission(t *testing.T) {
	l := testLedger(100000, 100000)
	l.adm.MaxPressure = 20
	percent := 19.9
	l.pressure = func() (float64, error) { return percent, nil }
	checkErr(t, l.reserve("a", 900), nil)
	percent = 20
	err := l.reserve("b", 900)
	checkErr(t, err, hostapi.ErrNoCapacity)
	if !strings.Contains(err.Error(), "waited for memory for 20 %") {
		t.Errorf("error = %q, want it to say why", err)
	}
	if got, err := l.memory(); err != nil || !got.Short || got.Pressure != 20 {
		t.Errorf("memory() = %+v, %v, want it short", got, err)
	}
	l.adm.MaxPressure = 0
	checkErr(t, l.reserve("b", 900), nil)
}

func TestParsePressure(t *testing.T) {
	const full = "full avg10=9.00 avg60=0.00 avg300=0.00 total=1\n"
	for text, want := range map[string]float64{
		"some avg10=12.34 avg60=0.00 avg300=0.00 total=5\n" + full: 12.34,
		full + "some avg10=0.00 avg60=1.00 avg300=0.00 total=5\n":  0,
	} {
		if got, err := parsePressure(text); err != nil || got != want {
			t.Errorf("parsePressure(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", full, "some avg10=x", "some avg10=NaN ", "some avg10=101 "} {
		if got, err := parsePressure(text); err == nil {
			t.Errorf("parsePressure(%q) = %v, want an error", text, got)
		}
	}
}
