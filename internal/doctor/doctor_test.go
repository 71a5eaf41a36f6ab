package doctor_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/doctor"
	"github.com/pandastack/pandastack/internal/host/probe"
)

var update = flag.Bool("update", false, "write the goldens")

var results = []probe.Result{
	{Name: "qemu", Finding: probe.Finding{Level: probe.OK, Text: "QEMU 10.0.2"}, Took: 12 * time.Millisecond},
	{
		Name: "accelerator",
		Finding: probe.Finding{
			Level: probe.Warn,
			Text: "TCG: a guest booted by translation; /dev/kvm exists, but a guest does not run with it: " +
				"its kernel printed nothing within 5s",
			Fix: "use a machine with hardware virtualization for full speed",
		},
	},
	{
		Name: "reflink",
		Finding: probe.Finding{
			Level: probe.Fail,
			Text:  "/data is on ext4, which cannot clone files",
			Fix:   "run `pandastack setup`",
		},
	},
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	if err := doctor.Table(&out, results, 80); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "table.golden")
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("table, %v:\n%s\nwant:\n%s", err, out.Bytes(), want)
	}
}

func TestJSON(t *testing.T) {
	var out bytes.Buffer
	if err := doctor.JSON(&out, results); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Healthy bool
		Checks  []struct {
			Name, Level, Text, Fix string
			TookMS                 float64 `json:"took_ms"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Healthy || len(got.Checks) != 3 || got.Checks[0].TookMS != 12 || got.Checks[2].Level != "fail" {
		t.Errorf("JSON: got %+v", got)
	}
	if !doctor.Healthy(results[:2]) {
		t.Error("Healthy returned false for a warning")
	}
}

func TestCheckReportsAll(t *testing.T) {
	n := 0
	all := doctor.Check(
		t.Context(),
		probe.Config{DataDir: t.TempDir(), QEMU: "no-such-qemu"},
		func(probe.Result) { n++ },
	)
	if n != len(all) || n == 0 {
		t.Errorf("reported %d of %d results", n, len(all))
	}
}
