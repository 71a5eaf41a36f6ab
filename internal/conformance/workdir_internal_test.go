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

// killer notes which directories it was asked to end the monitors of.
type killer struct {
	vmm.Driver
	killed []string
}

func (k *killer) Kill(ctx context.Context, spec vmm.Spec) error {
	k.killed = append(k.killed, spec.Dir)
	return k.Driver.Kill(ctx, spec)
}

func TestWorkdirIsOfOneRun(t *testing.T) {
	k := &killer{Driver: fake.New()}
	o := Options{DataDir: t.TempDir(), Open: func(context.Context, string) (vmm.Driver, error) { return k, nil }}
	a, err := enter(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enter(t.Context(), o); err == nil {
		t.Error("two runs have one arena")
	}
	if len(k.killed) != 0 {
		t.Errorf("a run ended monitors of nobody: %v", k.killed)
	}
	machine := filepath.Join(a.dir, "m7")
	if err := errors.Join(os.Mkdir(machine, 0o755), os.WriteFile(filepath.Join(a.dir, "image.disk"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	_ = a.lock.Close() // as at the death of the process
	a, err = enter(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(a.dir)
	if err != nil || len(left) != 0 || !slices.Equal(k.killed, []string{machine}) {
		t.Errorf("a run begins with %v, %v, after it ended the monitors of %v", left, err, k.killed)
	}
	if err := a.leave(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(a.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}
