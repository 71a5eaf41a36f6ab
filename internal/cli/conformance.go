package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/conformance"
	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
)

func (a *app) conformance() *cobra.Command {
	c := &cobra.Command{
		Use:   "conformance {firecracker|qemu}",
		Short: "Test a monitor on this machine with real guests",
		Long: "Test a monitor on this machine with real guests: run the conformance suite of all drivers, then\n" +
			"measure latencies as rows for SPECIFICATION.md. The command needs root and the files that\n" +
			"`pandastack setup` creates; the first run builds a small root disk. The exit code is 1 if a test\n" +
			"fails.",
		Args: cobra.MatchAll(
			cobra.ExactArgs(1),
			cobra.OnlyValidArgs,
		), ValidArgs: []string{probe.FirecrackerDriver, probe.QEMUDriver},
	}
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		l, err := a.node(nil)
		if err != nil {
			return err
		}
		release, err := disk.EnsureDataDir(c.Context(), l.DataDir)
		if err != nil {
			return local(err)
		}
		defer func() { err = errors.Join(err, release(context.WithoutCancel(c.Context()))) }()
		open, err := monitor(c.Context(), args[0], &l.Node)
		if err != nil {
			return local(err)
		}
		return a.conform(c.Context(), conformance.Options{
			DataDir: l.DataDir, Agent: l.Agent(), Open: open, DisableJail: l.Node.VMM.DisableJail,
			RecordCalls: l.Node.VMM.SeccompMode == "record",
		})
	}
	return c
}

// conform runs the suite and prints the results.
func (a *app) conform(ctx context.Context, o conformance.Options) (err error) {
	lab, err := conformance.Open(ctx, o)
	if err != nil {
		return local(err)
	}
	defer func() { err = errors.Join(err, lab.Close(ctx)) }()
	var broken error
	report := conformance.Suite(ctx, lab.Lab, func(r conformance.Result) {
		if a.JSON || ctx.Err() != nil { // failures after a cancellation say nothing about the monitor
			return
		}
		level := "ok"
		if len(r.Errs) > 0 {
			level = "FAIL"
		}
		_, e := fmt.Fprintf(
			a.Stdout,
			"%-5s %-24s %8.2f s   %s\n",
			level,
			r.Name,
			r.Took.Seconds(),
			strings.Join(r.Errs, "; "),
		)
		broken = errors.Join(broken, e)
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	report.RefusedCalls = lab.RefusedCalls()
	if a.JSON {
		broken = cmdutil.WriteJSON(a.Stdout, report)
	} else {
		_, e := fmt.Fprintf(a.Stdout, "\n%s", report.Rows())
		broken = errors.Join(broken, e)
		if len(report.RefusedCalls) > 0 {
			_, e := fmt.Fprintf(
				a.Stdout,
				"\nsystem calls that are not allowed (add them to vmm.seccomp_allow if the monitor needs them): %s\n",
				strings.Join(report.RefusedCalls, ", "),
			)
			broken = errors.Join(broken, e)
		}
	}
	if broken != nil {
		return local(broken)
	}
	if !report.Passed() {
		return exitCode(1)
	}
	return nil
}

// monitor returns a function that opens a driver. It probes once for the accelerator of QEMU, and for whether
// Firecracker can run a guest on this host: if it cannot, every test would fail without testing the monitor.
func monitor(
	ctx context.Context,
	name string,
	n *config.Node,
) (func(context.Context, string) (vmm.Driver, error), error) {
	c := n.VMM
	if name == probe.FirecrackerDriver {
		_, err := probe.ChooseDriver(ctx, probe.Config{DataDir: n.DataDir, Driver: name, Firecracker: c.Firecracker})
		if err != nil {
			return nil, fmt.Errorf("%w; the rows firecracker and driver of `pandastack doctor` say what to do", err)
		}
		return func(ctx context.Context, dir string) (vmm.Driver, error) {
			return firecracker.New(ctx, firecracker.Config{
				Binary: c.Firecracker, Jailer: c.Jailer, Dir: dir,
				HotplugMemoryMiB: c.HotplugMemoryMiB, HotplugDisks: c.HotplugDisks,
			})
		}, nil
	}
	if name != probe.QEMUDriver {
		return nil, fmt.Errorf("unknown monitor %q: use firecracker or qemu", name)
	}
	accelerator := vmm.Accelerator(c.Accelerator)
	if c.Accelerator == probe.Auto {
		choice, err := probe.ChooseAccelerator(ctx, probe.Config{DataDir: n.DataDir, QEMU: c.QEMU})
		if err != nil {
			return nil, err
		}
		accelerator = choice.Accelerator
	}
	return func(ctx context.Context, _ string) (vmm.Driver, error) {
		return qemu.New(ctx, qemu.Config{
			Binary: c.QEMU, Accelerator: accelerator, AllowSyscalls: c.AllowedSyscalls(),
		})
	}, nil
}
