package setup_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/setup"
)

var update = flag.Bool("update", false, "write the goldens")

// bare returns the facts of a fresh Debian 12; ready returns those after setup.
func bare() setup.Facts {
	return setup.Facts{
		Root: true, Debian: true, Distribution: "Debian GNU/Linux 12 (bookworm)", Codename: "bookworm",
		Missing:      []string{"mmdebstrap", "xfsprogs"},
		BuildMissing: []string{"bc", "flex"},
		BenchMissing: []string{"runc"},
	}
}

func ready() setup.Facts {
	f := bare()
	f.Missing, f.QEMUMajor, f.Backports, f.HasLists = nil, 10, true, true
	f.DataExists, f.Reflink, f.Image, f.Mounted, f.Kernel = true, true, true, true, "6.12"
	return f
}

func with(f setup.Facts, change func(*setup.Facts)) setup.Facts {
	change(&f)
	return f
}

func TestPlan(t *testing.T) {
	config := setup.Config{DataDir: "/var/lib/pandastack", ImageGiB: 40}
	tuned := config
	tuned.Kernel = setup.KernelTuned
	bench := config
	bench.Bench = true
	rows := []struct {
		name   string
		config setup.Config
		facts  setup.Facts
	}{
		{"bare-bookworm", config, bare()},
		{"bare-trixie", config, with(bare(), func(f *setup.Facts) { f.Codename, f.HasLists = "trixie", true })},
		{"ready", config, ready()},
		{"ready-but-tuned-wanted", tuned, ready()},
		{"ready-but-bench-wanted", bench, ready()},
		{"bench-ready", bench, with(ready(), func(f *setup.Facts) { f.BenchMissing = nil })},
		{
			"bench-on-other-distribution",
			bench,
			with(ready(), func(f *setup.Facts) { f.Debian, f.Distribution = false, "Fedora Linux 44" }),
		},
		{"tuned-there", tuned, with(ready(), func(f *setup.Facts) { f.Kernel, f.Tuned = "", "6.12" })},
		{"after-restart", config, with(ready(), func(f *setup.Facts) { f.Mounted, f.Reflink = false, false })},
		{"old-qemu", config, with(ready(), func(f *setup.Facts) { f.QEMUMajor, f.Backports = 7, false })},
		{"own-xfs", config, with(bare(), func(f *setup.Facts) { f.Reflink = true })},
		{"no-root", config, with(bare(), func(f *setup.Facts) { f.Root = false })},
		{"ready-no-root", config, with(ready(), func(f *setup.Facts) { f.Root = false })},
		{
			"other-distribution",
			config,
			with(bare(), func(f *setup.Facts) { f.Debian, f.Distribution = false, "Fedora Linux 44" }),
		},
		{"other-distribution-ready", config, with(ready(), func(f *setup.Facts) { f.Debian, f.QEMUMajor = false, 9 })},
	}
	var out bytes.Buffer
	for _, r := range rows {
		fmt.Fprintf(&out, "%s:\n", r.name)
		steps, err := setup.Plan(r.config, r.facts)
		if err != nil {
			fmt.Fprintf(&out, "  error: %v\n", err)
		}
		for i, s := range steps {
			fmt.Fprintf(&out, "  %d. %-12s %s\n", i+1, s.Kind, s.Text)
		}
	}
	path := filepath.Join("testdata", "plan.golden")
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("got plans, error %v:\n%s\nwant:\n%s", err, out.Bytes(), want)
	}
}

func TestApplyStopsAtFailure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var began []int
	var failed error
	report := setup.Report{
		Begin: func(i, n int, _ setup.Step) { began = append(began, i, n) },
		End:   func(_ setup.Step, _ time.Duration, err error) { failed = errors.Join(failed, err) },
	}
	steps := []setup.Step{
		{Kind: setup.MakeDirectory, Text: "make it"},
		{Kind: "nonsense", Text: "do nonsense"},
		{Kind: setup.MakeDirectory},
	}
	err := setup.Apply(t.Context(), setup.Config{DataDir: dir}, steps, report)
	if err == nil || !strings.Contains(err.Error(), "do nonsense") || failed == nil {
		t.Errorf("Apply: got error %v, reported %v", err, failed)
	}
	if fmt.Sprint(began) != "[1 3 2 3]" {
		t.Errorf("got steps %v", began)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the step before the failed one was undone: %v", err)
	}
}

func TestInspectThisMachine(t *testing.T) {
	f, err := setup.Inspect(t.Context(), setup.Config{DataDir: filepath.Join(t.TempDir(), "a", "b")})
	if err != nil {
		t.Fatal(err)
	}
	if f.Distribution == "" || f.DataExists || f.Image || f.Kernel != "" {
		t.Errorf("got facts %+v", f)
	}
}
