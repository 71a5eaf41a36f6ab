package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/doctor"
	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/setup"
)

func (a *app) setup() *cobra.Command {
	var yes, remove, bench bool
	var kernel string
	var image int
	c := &cobra.Command{
		Use:   "setup",
		Short: "Prepare this machine: packages, guest kernel, data directory",
		Long: "Prepare this machine: packages, guest kernel, data directory. The command prints a plan and asks\n" +
			"before it changes anything. It does only what is missing, and can be run again at any time. It\n" +
			"uses the machine's own mirrors.",
		Args: cobra.NoArgs,
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().StringVar(&kernel, "kernel", setup.KernelDistribution,
		"guest kernel: distribution, or tuned, which is compiled on this machine and takes minutes")
	c.Flags().IntVar(&image, "image-gib", 0, "size of the sparse XFS image that holds the data directory if its file "+
		"system has no reflinks (default: capacity.disk_image_gib, 40)")
	c.Flags().BoolVar(&bench, "bench", false, "also install what pandastack bench compares with: runc")
	c.Flags().BoolVar(&remove, "remove", false,
		"remove the data directory with all its contents and the guest kernels; packages stay")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if kernel != setup.KernelDistribution && kernel != setup.KernelTuned {
			return fmt.Errorf("--kernel: %q is neither %s nor %s", kernel, setup.KernelDistribution, setup.KernelTuned)
		}
		set := map[string]string{}
		if c.Flags().Changed("image-gib") {
			set["capacity.disk_image_gib"] = strconv.Itoa(image)
		}
		l, err := a.node(set)
		if err != nil {
			return err
		}
		cfg := setup.Config{DataDir: l.DataDir, ImageGiB: l.Capacity.DiskImageGiB, Kernel: kernel, Bench: bench}
		if remove {
			what := "This removes " + l.DataDir + " with every sandbox, snapshot and template in it."
			if err := a.confirm(yes, what); err != nil {
				return err
			}
			return local(setup.Remove(c.Context(), cfg, func(line string) { a.Statusf("%s", line) }))
		}
		return a.prepare(c.Context(), cfg, yes)
	}
	return c
}

// prepare makes a plan and, if the user agrees, carries it out.
func (a *app) prepare(ctx context.Context, cfg setup.Config, yes bool) error {
	facts, err := setup.Inspect(ctx, cfg)
	if err != nil {
		return local(err)
	}
	steps, err := setup.Plan(cfg, facts)
	if err != nil {
		return local(err)
	}
	if len(steps) > 0 {
		a.Statusf("plan for %s:", facts.Distribution)
		for i, s := range steps {
			a.Statusf("  %d. %s", i+1, s.Text)
		}
		if err := a.confirm(yes, ""); err != nil {
			return err
		}
		if err := setup.Apply(ctx, cfg, steps, a.stepReport()); err != nil {
			return local(err)
		}
	}
	done := make([]string, 0, len(steps))
	for _, s := range steps {
		done = append(done, s.Text)
	}
	return a.Print(map[string]any{"done": done, "data_dir": cfg.DataDir}, func(w io.Writer) error {
		if len(done) == 0 {
			_, err := fmt.Fprintln(w, "nothing to do: this machine is ready")
			return err
		}
		_, err := fmt.Fprintf(w, "this machine is ready; data is in %s\n", cfg.DataDir)
		return err
	})
}

// stepReport shows the progress of a plan, and the output of a step that failed.
func (a *app) stepReport() setup.Report {
	const kept = 30
	var last []string
	show := func(string, int) {}
	return setup.Report{
		Begin: func(i, n int, s setup.Step) {
			last, show = nil, a.progress(fmt.Sprintf("[%d/%d] %s", i, n, s.Text))
			show("working", 0)
		},
		Line: func(line string) {
			if last = append(last, line); len(last) > kept {
				last = last[1:]
			}
		},
		End: func(_ setup.Step, _ time.Duration, err error) {
			if err == nil {
				show("", 100)
				return
			}
			a.Statusf("\n%s", strings.Join(last, "\n"))
		},
	}
}

// confirm asks the user at a terminal. Without a terminal it requires --yes.
func (a *app) confirm(yes bool, what string) error {
	if yes {
		return nil
	}
	if what != "" {
		a.Statusf("%s", what)
	}
	if _, ok := cmdutil.Terminal(a.Stdin); !ok || a.JSON {
		return api.Errorf(api.Invalid, "nothing was done; use --yes to do it")
	}
	fmt.Fprint(a.Stderr, "Continue? [y/N] ")
	answer, err := bufio.NewReader(a.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return local(err)
	}
	if t := strings.ToLower(strings.TrimSpace(answer)); t != "y" && t != "yes" {
		return api.Errorf(api.Canceled, "nothing was done")
	}
	return nil
}

func (a *app) doctor() *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine can run sandboxes",
		Long: "Check whether this machine can run sandboxes, by trying: every check prints its finding and a\n" +
			"remedy. The accelerator is probed by booting a guest. The exit code is 1 if sandboxes would not\n" +
			"work.",
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		l, err := a.node(nil)
		if err != nil {
			return err
		}
		width := 0
		if screen, ok := cmdutil.Terminal(a.Stdout); ok {
			if cols, _, err := term.GetSize(int(screen.Fd())); err == nil {
				width = cols
			}
		}
		var broken error
		results := doctor.Check(
			c.Context(),
			probe.Config{
				DataDir:     l.DataDir,
				QEMU:        l.VMM.QEMU,
				Driver:      l.VMM.Driver,
				Firecracker: l.VMM.Firecracker,
				Jailer:      l.VMM.Jailer,
				HugePages:   l.VMM.HugePages,
				GuestAgent:  l.Agent(),
			},
			func(r probe.Result) {
				if !a.JSON {
					broken = errors.Join(broken, doctor.Line(a.Stdout, r, width))
				}
			},
		)
		if a.JSON {
			broken = doctor.JSON(a.Stdout, results)
		} else {
			_, err := fmt.Fprintln(a.Stdout, doctor.Summary(results))
			broken = errors.Join(broken, err)
		}
		if broken != nil {
			return local(broken)
		}
		if !doctor.Healthy(results) {
			return exitCode(1)
		}
		return nil
	}
	return c
}
