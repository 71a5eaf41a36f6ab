package conformance_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/conformance"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/fake"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// lab returns a lab whose machines are those of the fake driver d.
func lab(t *testing.T, d *fake.Driver) vmmtest.Lab {
	t.Helper()
	return vmmtest.Lab{
		Dir: t.TempDir(), Open: func(vmmtest.TB) vmm.Driver { return d }, Abandon: func(vmmtest.TB, vmm.Driver) {},
		Crash: func(vmmtest.TB, vmm.Machine) {
			for _, id := range d.Monitors() {
				d.Crash(id, errors.New("killed from outside"))
			}
		},
		Spec: vmm.Spec{VCPUs: 1, MemoryMiB: 64},
		Disk: func(t vmmtest.TB, path string) {
			if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		Data: func(t vmmtest.TB, path string) {
			if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		Clone: func(vmmtest.TB, *os.File, string) {},
	}
}

func TestSuitePasses(t *testing.T) {
	d := fake.New()
	seen := 0
	r := conformance.Suite(t.Context(), lab(t, d), func(conformance.Result) { seen++ })
	for _, one := range r.Results {
		if len(one.Errs) > 0 {
			t.Errorf("%s: %v", one.Name, one.Errs)
		}
	}
	if !r.Passed() || seen != len(r.Results) || seen < len(vmmtest.Cases()) || r.Driver.Name != "fake" {
		t.Errorf("passed %v, %d results reported of %d, driver %+v; want a pass, all reported, and the fake driver",
			r.Passed(), seen, len(r.Results), r.Driver)
	}
	if rows := r.Rows(); len(r.Latencies) == 0 || strings.Count(rows, "\n") != len(r.Latencies)+2 ||
		!strings.Contains(rows, "fake 1.0, none") {
		t.Errorf("Rows() =\n%s\nwant a header and one row for each of %d latencies", rows, len(r.Latencies))
	}
	if left := d.Monitors(); len(left) != 0 {
		t.Errorf("monitors left over: %v, want none", left)
	}
}

func TestSuiteReportsFailures(t *testing.T) {
	d := fake.New()
	d.OnStep(func(op, id string) error {
		if op == fake.OpResume {
			return errors.New("injected resume failure")
		}
		return nil
	})
	r := conformance.Suite(t.Context(), lab(t, d), nil)
	at := slices.IndexFunc(r.Results, func(r conformance.Result) bool { return r.Name == "pause" })
	if r.Passed() || at < 0 || !strings.Contains(strings.Join(r.Results[at].Errs, " "), "injected resume failure") {
		t.Errorf("results = %+v, want case pause to fail with the injected error", r.Results)
	}
	if left := d.Monitors(); len(left) != 0 {
		t.Errorf("monitors left over: %v, want none", left)
	}
	d = fake.New()
	d.FailNext(fake.OpBoot, errors.New("injected boot failure"))
	if r := conformance.Suite(t.Context(), lab(t, d), nil); r.Passed() || len(r.Results) != 2 {
		t.Errorf("results without a baked machine = %+v, want a failed bake and the end", r.Results)
	}
}

func TestRunner(t *testing.T) {
	var order []string
	r := conformance.Run(t.Context(), "x", func(t vmmtest.TB) {
		t.Cleanup(func() { order = append(order, "first") })
		t.Cleanup(func() { t.Fatal("cleanup") })
		t.Cleanup(func() { order = append(order, "last", t.Context().Err().Error()) })
		t.Error("one")
		t.Fatalf("tw%s", "o")
		t.Error("never")
	})
	if strings.Join(r.Errs, ",") != "one,two,cleanup" || strings.Join(order, ",") != "last,context canceled,first" {
		t.Errorf("errors %v, cleanups %v; want errors one, two, cleanup, and cleanups last, first", r.Errs, order)
	}
}
