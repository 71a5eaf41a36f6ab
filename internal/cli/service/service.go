// Package service has the commands that run the node as a service of systemd.
package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Options of the commands.
type Options struct {
	Load func() (*config.Loaded, error) // loads the configuration of the node
	File func() string                  // path of its configuration file, "" if none was named
	// Fail marks an error as a failure of this machine.
	Fail func(error) error
}

// Command returns the group of commands for the service.
func Command(f *cmdutil.Factory, opt Options) *cobra.Command {
	m := &manager{Factory: f, opt: opt, root: "/", run: systemctl}
	return cmdutil.Group("service", "Run the node as a service of systemd", m.install(), m.uninstall(), m.stop())
}

// manager carries out the commands.
type manager struct {
	*cmdutil.Factory
	opt  Options
	root string // of the file system
	run  func(ctx context.Context, args ...string) (output string, err error)
}

// systemctl runs systemctl(1).
func systemctl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return text, nil
}

// programs are the files of a release. They belong into one directory.
var programs = []string{"pandastack", "pandastack-guest", "pandastack-build", "pandastack-runtime"}

func (m *manager) install() *cobra.Command {
	var bin string
	var show, noStart bool
	c := &cobra.Command{
		Use:   "install",
		Short: "Install the node as a service, or upgrade it",
		Long: "Install the node as a service, or upgrade it: copy this program to --bin-dir, write the unit, and\n" +
			"start the node now and at every boot. Sandboxes keep running during an upgrade, and the new program\n" +
			"adopts them. A shutdown of the machine hibernates persistent sandboxes.",
		Args: cobra.NoArgs,
	}
	c.Flags().StringVar(&bin, "bin-dir", "/usr/local/bin", "directory of the installed program")
	c.Flags().BoolVar(&show, "print", false, "print the unit and change nothing")
	c.Flags().BoolVar(&noStart, "no-start", false, "do not start or restart the node")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if !filepath.IsAbs(bin) {
			return fmt.Errorf("--bin-dir: %q is not an absolute path", bin)
		}
		u, err := m.unit(c, bin)
		if err != nil {
			return err
		}
		if show {
			_, err := io.WriteString(m.Stdout, u.text())
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return m.opt.Fail(err)
		}
		return m.opt.Fail(m.doInstall(c.Context(), filepath.Dir(self), bin, u, !noStart))
	}
	return c
}

// unit returns the unit of this configuration.
func (m *manager) unit(c *cobra.Command, bin string) (unit, error) {
	l, err := m.opt.Load()
	if err != nil {
		return unit{}, err
	}
	u := unit{
		Program: filepath.Join(bin, programs[0]), StopTime: int(l.Lifecycle.ShutdownTimeout/time.Second) + 30,
	}
	if file := m.opt.File(); file != "" {
		if u.Config, err = filepath.Abs(file); err != nil {
			return unit{}, m.opt.Fail(err)
		}
	}
	if c.Flags().Changed("data-dir") {
		u.DataDir = l.DataDir
	}
	return u, nil
}

// check returns why this machine cannot have the service, or nil.
func (m *manager) check() error {
	if os.Geteuid() != 0 {
		return errors.New("a service requires root: use sudo")
	}
	if _, err := os.Stat(filepath.Join(m.root, "run/systemd/system")); err != nil {
		return errors.New("systemd does not run on this machine: run \"pandastack up\" under the service manager " +
			"that does; \"pandastack service install --print\" shows what it has to do")
	}
	return nil
}

// doInstall installs the programs in the directory from.
func (m *manager) doInstall(ctx context.Context, from, bin string, u unit, start bool) error {
	if err := m.check(); err != nil {
		return err
	}
	for _, name := range programs {
		if err := copyProgram(filepath.Join(from, name), filepath.Join(m.root, bin, name)); err != nil {
			return err
		}
	}
	if err := durable.WriteFile(m.unitFile(), []byte(u.text()), 0o644); err != nil {
		return err
	}
	if _, err := m.run(ctx, "daemon-reload"); err != nil {
		return err
	}
	if _, err := m.run(ctx, "enable", unitName); err != nil {
		return err
	}
	if start {
		m.Statusf("starting the node")
		if _, err := m.run(ctx, "restart", unitName); err != nil {
			return fmt.Errorf("%w; \"journalctl -u pandastack -n 50\" shows why", err)
		}
	}
	return m.Print(map[string]any{"unit": m.unitFile(), "program": u.Program, "started": start},
		func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "installed %s\nlogs: journalctl -u pandastack\n", m.unitFile())
			return err
		})
}

func (m *manager) unitFile() string { return filepath.Join(m.root, "etc/systemd/system", unitName) }

// copyProgram installs a program. A program that is already there may be running.
func copyProgram(from, to string) (err error) {
	same, err := sameFile(from, to)
	if err != nil || same {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	out, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close(), os.Remove(out.Name()))
		}
	}()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	if err := errors.Join(out.Chmod(0o755), out.Sync()); err != nil {
		return err
	}
	if err := os.Rename(out.Name(), to); err != nil {
		return err
	}
	return out.Close()
}

func sameFile(a, b string) (bool, error) {
	sa, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	sb, err := os.Stat(b)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(sa, sb), err
}

func (m *manager) uninstall() *cobra.Command {
	var bin string
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Stop the node, hibernate persistent sandboxes, and remove the service",
		Long: "Stop the node, hibernate persistent sandboxes, and remove the service with its program. The data\n" +
			"directory stays; \"pandastack setup --remove\" removes it.",
		Args: cobra.NoArgs,
	}
	c.Flags().StringVar(&bin, "bin-dir", "/usr/local/bin", "directory of the installed program")
	c.RunE = func(c *cobra.Command, _ []string) error { return m.opt.Fail(m.doUninstall(c.Context(), bin)) }
	return c
}

func (m *manager) doUninstall(ctx context.Context, bin string) error {
	if err := m.check(); err != nil {
		return err
	}
	if _, err := os.Stat(m.unitFile()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no service: %s does not exist", m.unitFile())
	}
	// A stop leaves sandboxes running. This one must not.
	text, err := os.ReadFile(m.unitFile())
	if err != nil {
		return err
	}
	text = bytes.Replace(text, []byte(stopCommand), []byte(stopCommand+"--interrupt "), 1)
	if err := durable.WriteFile(m.unitFile(), text, 0o644); err != nil {
		return err
	}
	if _, err := m.run(ctx, "daemon-reload"); err != nil {
		return err
	}
	m.Statusf("stopping the node")
	if _, err := m.run(ctx, "disable", "--now", unitName); err != nil {
		return err
	}
	remove := []string{m.unitFile()}
	for _, name := range programs {
		remove = append(remove, filepath.Join(m.root, bin, name))
	}
	for _, path := range remove {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if _, err := m.run(ctx, "daemon-reload"); err != nil {
		return err
	}
	return m.Print(map[string]any{"removed": remove}, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, "removed "+strings.Join(remove, ", "))
		return err
	})
}

func (m *manager) stop() *cobra.Command {
	var pid int
	var interrupt bool
	c := &cobra.Command{
		Use:   "stop",
		Short: "Stop the node as systemd does",
		Long: "Stop the node as systemd does: sandboxes keep running, for the next start to adopt, unless the\n" +
			"machine is shutting down. Then persistent ones are hibernated.",
		Args:   cobra.NoArgs,
		Hidden: true,
	}
	c.Flags().IntVar(&pid, "main-pid", 0, "process ID of the node")
	c.Flags().BoolVar(&interrupt, "interrupt", false, "as when the machine is shutting down")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if pid < 1 {
			return fmt.Errorf("--main-pid: %d is not a process ID", pid)
		}
		sig := unix.SIGTERM
		// systemctl(1): is-system-running fails unless the state is "running".
		if state, _ := m.run(c.Context(), "is-system-running"); interrupt || strings.HasPrefix(state, "stopping") {
			sig = unix.SIGINT
		}
		return m.opt.Fail(end(c.Context(), pid, sig))
	}
	return c
}

// end sends a signal to a process and waits until it has ended. No process is no error.
func end(ctx context.Context, pid int, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("pidfd_send_signal: %w", err)
	}
	for ctx.Err() == nil {
		// A process that has ended makes its descriptor readable: pidfd_open(2).
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}
