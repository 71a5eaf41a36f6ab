package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Series is one quantity, measured several times.
type Series struct {
	Name   string    `json:"name"`
	What   string    `json:"what"`
	Unit   string    `json:"unit"`
	Values []float64 `json:"values"` // in the order they were measured
	P50    float64   `json:"p50"`
	P95    float64   `json:"p95"`
	P99    float64   `json:"p99"`
	Max    float64   `json:"max"`
	Target *Target   `json:"target,omitempty"`
	Met    *bool     `json:"met,omitempty"`
	Failed int       `json:"failed,omitempty"` // measurements that failed
	Note   string    `json:"note,omitempty"`
}

// Target is a promise in SPECIFICATION.md. A zero field sets no limit.
type Target struct {
	AtLeast float64 `json:"at_least,omitempty"` // lower limit of the p50, for rates
	P50     float64 `json:"p50,omitempty"`
	P99     float64 `json:"p99,omitempty"`
	Max     float64 `json:"max,omitempty"`
	Least   float64 `json:"least,omitempty"` // lower limit of every value
}

// Report is the result of a run.
type Report struct {
	Began   time.Time         `json:"began"`
	Took    float64           `json:"took_seconds"`
	Machine Machine           `json:"machine"`
	Node    map[string]string `json:"node"`
	Series  []*Series         `json:"series"`
	Ratio   float64           `json:"cold_boot_over_create,omitempty"` // p50 of cold_boot over p50 of create_sequential
	Skipped map[string]string `json:"skipped,omitempty"`
}

// Machine describes the host of a run.
type Machine struct {
	CPU       string  `json:"cpu"`
	CPUs      int     `json:"cpus"`
	MemoryMiB int     `json:"memory_mib"`
	Kernel    string  `json:"kernel"`
	Load1     float64 `json:"load_1"` // load average when the run began; above 0.5 per core the host is not quiet
}

// percentile returns the p-th percentile by nearest rank, with p from 0 to 100. It returns 0 if values is empty.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(p/100*float64(len(sorted)) + 0.999999)
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// close computes the percentiles and whether the target is met.
func (s *Series) close() {
	s.P50, s.P95 = percentile(s.Values, 50), percentile(s.Values, 95)
	s.P99, s.Max = percentile(s.Values, 99), percentile(s.Values, 100)
	if s.Target == nil || len(s.Values) == 0 {
		return
	}
	holds := func(value, limit float64) bool { return limit == 0 || value <= limit }
	// values may be negative: jail_cost
	reaches := func(value, least float64) bool { return least == 0 || value >= least }
	met := reaches(s.P50, s.Target.AtLeast) && holds(s.P50, s.Target.P50) && holds(s.P99, s.Target.P99) &&
		holds(s.Max, s.Target.Max) &&
		reaches(slices.Min(s.Values), s.Target.Least) &&
		s.Failed == 0
	s.Met = &met
}

// Table writes the report as text.
func (r *Report) Table(w io.Writer) error {
	fmt.Fprintf(
		w,
		"%s · %d CPUs · %d MiB · Linux %s · load %.2f\n",
		r.Machine.CPU,
		r.Machine.CPUs,
		r.Machine.MemoryMiB,
		r.Machine.Kernel,
		r.Machine.Load1,
	)
	fmt.Fprintf(w, "%s %s, %s · %.0f s\n\n", r.Node["driver"], r.Node["driver_version"], r.Node["accelerator"], r.Took)
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "SERIES\tN\tP50\tP95\tP99\tMAX\tUNIT\tTARGET\t")
	for _, s := range r.Series {
		fmt.Fprintf(
			t,
			"%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			s.Name,
			len(s.Values),
			number(s.P50),
			number(s.P95),
			number(s.P99),
			number(s.Max),
			s.Unit,
			s.target(),
			s.Note,
		)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Ratio > 0 {
		fmt.Fprintf(
			w,
			"\ncreate to first exec is %.1f times faster than a cold boot to first exec of the same template: "+
				">=%d %s\n",
			r.Ratio,
			leastRatio,
			verdict(r.Ratio >= leastRatio),
		)
	}
	met, missed := r.targets()
	if met+len(missed) > 0 {
		fmt.Fprintf(w, "\n%d targets met, %d missed", met, len(missed))
		if len(missed) > 0 {
			fmt.Fprintf(w, ": %s", strings.Join(missed, ", "))
		}
		fmt.Fprintln(w)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Skipped)) {
		fmt.Fprintf(w, "not measured: %s: %s\n", name, r.Skipped[name])
	}
	return nil
}

// Missing returns an error that lists the groups of series that could not be measured, or nil.
func (r *Report) Missing() error {
	if len(r.Skipped) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(r.Skipped))
	return fmt.Errorf("not measured: %s; the report has the reasons, and --only measures other groups",
		strings.Join(names, ", "))
}

// targets returns the number of targets that were met, and the names of the series that missed theirs.
func (r *Report) targets() (met int, missed []string) {
	for _, s := range r.Series {
		switch {
		case s.Met == nil:
		case *s.Met:
			met++
		default:
			missed = append(missed, s.Name)
		}
	}
	if r.Ratio >= leastRatio {
		met++
	} else if r.Ratio > 0 {
		missed = append(missed, "cold_boot / create_sequential")
	}
	return met, missed
}

// verdict returns the word for a target in the table.
func verdict(met bool) string {
	if met {
		return "met"
	}
	return "MISSED"
}

// target returns the target column of the table.
func (s *Series) target() string {
	text := ""
	if t := s.Target; t != nil {
		for _, part := range []struct {
			sign  string
			limit float64
		}{{"p50<=", t.P50}, {"p99<=", t.P99}, {"max<=", t.Max}, {">=", t.Least}} {
			if part.limit > 0 {
				text += fmt.Sprintf("%s%s ", part.sign, number(part.limit))
			}
		}
		if t.AtLeast > 0 {
			text += fmt.Sprintf("p50>=%s ", number(t.AtLeast))
		}
		if s.Met != nil {
			text += verdict(*s.Met)
		}
	}
	if s.Failed > 0 {
		text += fmt.Sprintf(" %d FAILED", s.Failed)
	}
	return text
}

// number formats a value with about three significant digits.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
