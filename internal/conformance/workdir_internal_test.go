package conformance

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/fake"
)

// killRecorder records the directories of the machines that it is called to kill.
type killRecorder struct {
	vmm.Driver
	killed []string
}

func (k *killRecorder) Kill(ctx context.Context, spec vmm.Spec) error {
	k.killed = append(k.killed, spec.Dir)
	return k.Driver.Kill(ctx, spec)
}

func TestWorkdirIsExclusive(t *testing.T) {
	k := &killRecorder{Driver: fake.New()}
	o := Options{DataDir: t.TempDir(), Open: func(context.Context, string) (vmm.Driver, error) { return k, nil }}
	a, err := openWorkdir(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openWorkdir(t.Context(), o); err == nil {
		t.Error("a second run opened the work directory, want an error")
	}
	if len(k.killed) != 0 {
		t.Errorf("killed machines = %v in an empty work directory, want none", k.killed)
	}
	machine := filepath.Join(a.dir, "m7")
	image := filepath.Join(a.dir, "image.disk")
	if err := errors.Join(os.Mkdir(machine, 0o755), os.WriteFile(image, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	_ = a.lock.Close() // as the kernel does when the process dies
	a, err = openWorkdir(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(a.dir)
	if err != nil || len(left) != 0 || !slices.Equal(k.killed, []string{machine}) {
		t.Errorf(
			"work directory holds %v (%v) after killing %v, want nothing after killing %s",
			left,
			err,
			k.killed,
			machine,
		)
	}
	if err := a.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(a.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of the closed work directory: %v, want it to be removed", err)
	}
}
