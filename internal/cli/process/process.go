// Package process has the commands for the processes of sandboxes, and for the capacity of the node.
package process

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// List returns the command that lists the processes of a sandbox.
func List(f *cmdutil.Factory) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "ps ID",
		Short: "List the processes that were started in a sandbox",
		Long: "List the processes that were started in a sandbox through the API and run; with --all also those\n" +
			"that ended lately.",
		Args: cobra.ExactArgs(1),
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "also those that ended lately")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		id, err := cmdutil.FindSandbox(c.Context(), cl.Sandboxes, args[0])
		if err != nil {
			return err
		}
		list, err := cl.Sandboxes.Processes(c.Context(), id)
		if err != nil {
			return err
		}
		shown := []api.Process{}
		for _, p := range list {
			if p.Running || all {
				shown = append(shown, p)
			}
		}
		return cmdutil.PrintTable(f, shown, []string{"PID", "USER", "STATUS", "AGE", "TAG", "COMMAND"}, row)
	}
	return c
}

// maxCommand is how much of a command is shown, so that a line fits a terminal of 80 columns.
const maxCommand = 40

func row(p api.Process) []string {
	status := "running"
	switch {
	case p.OutOfMemory:
		status = "no memory"
	case p.ExitCode != nil:
		status = fmt.Sprintf("exit %d", *p.ExitCode)
	}
	command := []rune(strings.Join(strings.Fields(p.Cmd), " "))
	if len(command) > maxCommand {
		command = append(command[:maxCommand-3], []rune("...")...)
	}
	return []string{
		strconv.FormatUint(uint64(p.PID), 10), p.User, status, cmdutil.Age(p.StartedAt, time.Now()), p.Tag,
		string(command),
	}
}

// Signal returns the command that sends a signal to a process.
func Signal(f *cmdutil.Factory) *cobra.Command {
	var req api.SignalRequest
	c := &cobra.Command{
		Use:     "signal ID PID [SIGNAL]",
		Short:   "Send a signal to a process of a sandbox",
		Long:    "Send a signal to a process of a sandbox: a name such as HUP, or a number; TERM if none is given.",
		Example: "  pandastack sandbox signal sbx... 812 HUP",
		Args:    cobra.RangeArgs(2, 3),
	}
	c.Flags().BoolVar(&req.Group, "group", false, "also to every process that it started")
	c.RunE = func(c *cobra.Command, args []string) error {
		pid, err := strconv.ParseUint(args[1], 10, 32)
		if err != nil || pid == 0 {
			return fmt.Errorf("%q is not the number of a process: pandastack sandbox ps lists them", args[1])
		}
		if len(args) == 3 {
			if req.Signal, err = parseSignal(args[2]); err != nil {
				return err
			}
		}
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		id, err := cmdutil.FindSandbox(c.Context(), cl.Sandboxes, args[0])
		if err != nil {
			return err
		}
		return cl.Sandboxes.Signal(c.Context(), id, uint32(pid), req)
	}
	return c
}

// maxSignal is the highest number of a signal.
const maxSignal = 64

// parseSignal returns the number of a signal.
func parseSignal(text string) (int, error) {
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= maxSignal {
		return n, nil
	}
	name := strings.ToUpper(text)
	if n := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); n != 0 {
		return int(n), nil
	}
	return 0, fmt.Errorf("%q is not a signal: give a name such as HUP, or a number from 1 to %d", text, maxSignal)
}

// Capacity returns the command that shows what the node has and has promised.
func Capacity(f *cmdutil.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "capacity",
		Short: "Show what the node has, and what of it is free",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := f.Dial()
			if err != nil {
				return err
			}
			v, err := cl.Capacity(c.Context())
			if err != nil {
				return err
			}
			return f.Print(v, func(w io.Writer) error { return cmdutil.Facts(w, facts(v)) })
		},
	}
}

const mib = 1 << 20

func facts(v api.Capacity) []cmdutil.Fact {
	size := func(n int) string { return cmdutil.Size(int64(n) * mib) }
	short := func(is bool) string {
		if is {
			return " (short: nothing new is started)"
		}
		return ""
	}
	return []cmdutil.Fact{
		{"monitor", strings.TrimSpace(v.Driver + " " + v.DriverVersion + " " + v.Accelerator)},
		{"processors", strconv.Itoa(v.CPUs)},
		{"memory", size(v.MemoryMB) + short(v.MemoryShort)},
		{"  promised", size(v.MemoryPromisedMB)},
		{"  can be promised", size(v.MemoryFreeMB)},
		{"  available", size(v.MemoryAvailableMB)},
		{"  pressure", fmt.Sprintf("%.1f %%", v.MemoryPressure)},
		{"disk", size(v.DiskMB) + short(v.DiskShort)},
		{"  free", size(v.DiskFreeMB)},
		{"  reserve", size(v.DiskReserveMB)},
		{"sandboxes", strconv.Itoa(v.Sandboxes)},
		{"  running", strconv.Itoa(v.Running)},
		{"  waiting for space", strconv.Itoa(v.WaitingForSpace)},
		{"  unresponsive", strconv.Itoa(v.Unresponsive)},
	}
}
