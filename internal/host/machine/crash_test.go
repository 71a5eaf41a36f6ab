package machine_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
)

// cutOffs are what a crash of the host can leave of a file that was replaced and not synced.
var cutOffs = map[string]func([]byte) []byte{
	"empty": func([]byte) []byte { return nil },
	"half":  func(data []byte) []byte { return data[:len(data)/2] },
	"zeros": func(data []byte) []byte { return bytes.Repeat([]byte{0}, len(data)) },
}

// crash ends the process and everything on the host. A machine's record that is not durable is cut off.
func (w *fixture) crash(id string, cutOff func([]byte) []byte) {
	w.t.Helper()
	w.stop()
	for _, m := range w.host.alive() {
		m.exit(nil)
	}
	path := filepath.Join(w.dir, "machines", id, "machine.json")
	at, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	w.must(err)
	kept, err := os.Stat(filepath.Join(filepath.Dir(path), ".kept-machine.json"))
	if err == nil && os.SameFile(at, kept) {
		return
	}
	data, err := os.ReadFile(path)
	w.must(err)
	w.must(os.Remove(path)) // it may have other names
	w.must(os.WriteFile(path, cutOff(data), 0o600))
}

// TestCrashCutsOffRecords crashes the host after every step of what changes a machine's record, and after the
// operation. A machine at rest must keep its memory until a wake has used it, and a persistent one its disks always.
func TestCrashCutsOffRecords(t *testing.T) {
	operations := map[string]func(w *fixture) error{
		"hibernate": func(w *fixture) error { return w.mgr.Hibernate(w.t.Context(), "a") },
		"wake":      func(w *fixture) error { _, err := w.mgr.Wake(w.t.Context(), "a"); return err },
		"pause":     func(w *fixture) error { return w.mgr.Pause(w.t.Context(), "a") },
		"stop":      func(w *fixture) error { return w.mgr.Stop(w.t.Context(), "a") },
	}
	for name, operation := range operations {
		for how, cutOff := range cutOffs {
			for _, persistent := range []bool{true, false} {
				if !persistent && name != "wake" && name != "hibernate" {
					continue // a crash of the host removes it
				}
				for nth, where := 0, "?"; where != ""; nth++ {
					w := newFixture(t)
					w.create("a", persistent)
					if persistent {
						w.eventually("the record is durable", func() bool {
							_, err := os.Stat(filepath.Join(w.dir, "machines", "a", ".kept-machine.json"))
							return err == nil
						})
					}
					w.setNote("a")
					w.count("a", 1)
					if name == "wake" {
						w.must(w.mgr.Hibernate(t.Context(), "a"))
					}
					hook, seen := failAt(nth, machine.ErrAbandon)
					used := false
					w.onStep(func(op, step string) error {
						err := hook(op, step)
						used = used || step == "consume"
						return err
					})
					err := operation(w)
					if _, where = seen(); where == "" {
						w.must(err)
					}
					w.onStep(nil)
					w.crash("a", cutOff)
					w.boot()
					w.checkAfterCrash(name, how+" after "+name+" "+where, persistent, used, where == "")
				}
			}
		}
	}
}

func (w *fixture) checkAfterCrash(operation, where string, persistent, used, acknowledged bool) {
	w.t.Helper()
	mc, err := w.mgr.Get("a")
	atRest := operation == "wake" && !used || operation == "hibernate" && acknowledged
	switch {
	case errors.Is(err, hostapi.ErrNotFound) && !persistent && !atRest:
		return
	case err != nil:
		w.t.Errorf("%s: machine: %v", where, err)
		return
	case atRest && mc.State != hostapi.Hibernated:
		w.t.Errorf("%s: the machine is %s (%s), want it hibernated", where, mc.State, mc.Reason)
		return
	}
	if _, err := w.mgr.Wake(w.t.Context(), "a"); err != nil {
		w.t.Errorf("%s: wake of a machine that was %s: %v", where, mc.State, err)
		return
	}
	if atRest {
		w.wantNote("a")
	}
	w.count("a", 2)
	w.destroyAll(where)
}

// TestUnusableRecordKeepsItsImage starts a program that cannot use the record of a machine at rest, and then one that
// can: the machine must still have its memory.
func TestUnusableRecordKeepsItsImage(t *testing.T) {
	for _, change := range []struct{ from, to string }{
		{`"version":1`, `"version":2`}, {`"version":1`, `"version":1,"later":true`},
	} {
		w := newFixture(t)
		hibernated(w)
		w.stop()
		path := filepath.Join(w.dir, "machines", "a", "machine.json")
		data, err := os.ReadFile(path)
		w.must(err)
		other := bytes.Replace(data, []byte(change.from), []byte(change.to), 1)
		w.must(os.WriteFile(path, other, 0o600))
		w.boot()
		if _, err := w.mgr.Get("a"); !errors.Is(err, hostapi.ErrNotFound) {
			t.Errorf("a record with %s: got %v, want the machine left alone", change.to, err)
		}
		w.stop()
		w.must(os.WriteFile(path, data, 0o600))
		w.boot()
		_, err = w.mgr.Wake(t.Context(), "a")
		w.must(err)
		w.wantNote("a")
		w.count("a", 2)
		w.destroyAll(change.to)
	}
}
