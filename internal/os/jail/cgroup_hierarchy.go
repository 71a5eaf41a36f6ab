package jail

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNoControl reports that this host has no usable control groups.
var ErrNoControl = errors.New("no usable control groups")

// Hierarchy is the location of a host's cgroup hierarchies.
type Hierarchy struct {
	Version int    // cgroup version, 1 or 2
	CPU     string // directory of the hierarchy with the cpu controller
	Memory  string
	PIDs    string
	Account string // directory of the hierarchy that accounts processor time (cpuacct)
}

// String describes the hierarchy for people.
func (h Hierarchy) String() string {
	if h.Version == 2 {
		return "cgroup v2 at " + h.CPU
	}
	return fmt.Sprintf("cgroup v1 at %s, %s, %s", h.CPU, h.Memory, h.PIDs)
}

// roots returns the hierarchies, each once.
func (h Hierarchy) roots() []string {
	var list []string
	for _, r := range []string{h.CPU, h.Memory, h.PIDs, h.Account} {
		if !slices.Contains(list, r) {
			list = append(list, r)
		}
	}
	return list
}

// Probe finds the usable cgroups of this host by inspecting mounts and trying to write. The error
// wraps ErrNoControl and says what is missing.
func Probe() (Hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return Hierarchy{}, fmt.Errorf("%w: %w", ErrNoControl, err)
	}
	defer f.Close()
	unified, v1, err := mounts(f)
	if err != nil {
		return Hierarchy{}, fmt.Errorf("%w: %w", ErrNoControl, err)
	}
	why := errors.New("cgroup v2 is not mounted")
	if unified != "" {
		if why = checkDelegation(unified); why == nil {
			return Hierarchy{Version: 2, CPU: unified, Memory: unified, PIDs: unified, Account: unified}, nil
		}
	}
	l := Hierarchy{Version: 1, CPU: v1["cpu"], Memory: v1["memory"], PIDs: v1["pids"], Account: v1["cpuacct"]}
	for _, c := range []string{"cpu", "cpuacct", "memory", "pids"} {
		if v1[c] == "" {
			return Hierarchy{}, fmt.Errorf("%w: %w; cgroup v1 controller %s is not mounted", ErrNoControl, why, c)
		}
		if err := checkWritable(v1[c]); err != nil {
			return Hierarchy{}, fmt.Errorf("%w: %w; cgroup v1: %w", ErrNoControl, why, err)
		}
	}
	return l, nil
}

// mounts reads mountinfo (proc_pid_mountinfo(5)). It returns the mount points of cgroup v2 and of
// the cgroup v1 controllers.
func mounts(r io.Reader) (unified string, v1 map[string]string, err error) {
	v1 = map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		at := unescape.Replace(left[4])
		switch right[0] {
		case "cgroup2":
			if unified == "" {
				unified = at
			}
		case "cgroup":
			for _, o := range strings.Split(right[2], ",") {
				if (o == "cpu" || o == "cpuacct" || o == "memory" || o == "pids") && v1[o] == "" {
					v1[o] = at
				}
			}
		}
	}
	return unified, v1, lines.Err()
}

// unescape decodes the octal escapes of mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

var controllers = []string{"cpu", "memory", "pids"}

// checkDelegation returns why cgroups below root cannot use the controllers, or nil if they can.
func checkDelegation(root string) error {
	there, err := readFields(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if !slices.Contains(there, c) {
			return fmt.Errorf("cgroup v2 at %s has no controller %s", root, c)
		}
	}
	if err := delegate(root); err != nil {
		return fmt.Errorf("cgroup v2 at %s: %w", root, err)
	}
	return checkWritable(root)
}

// delegate enables the controllers for the cgroups below dir, unless they are enabled already.
func delegate(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	on, err := readFields(file)
	if err != nil {
		return err
	}
	var missing []string
	for _, c := range controllers {
		if !slices.Contains(on, c) {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return writeControl(file, strings.Join(missing, " "))
}

// checkWritable returns why no cgroup can be created in dir, or nil if one can.
func checkWritable(dir string) error {
	probe, err := os.MkdirTemp(dir, "probe")
	if err != nil {
		return fmt.Errorf("create control group: %w", err)
	}
	if err := os.Remove(probe); err != nil {
		return fmt.Errorf("remove control group: %w", err)
	}
	return nil
}

func readFields(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(b)), nil
}

// writeControl writes a value to a control file. Unlike os.WriteFile it never creates a file.
func writeControl(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if err != nil {
		err = fmt.Errorf("set %q: %w", value, err)
	}
	return errors.Join(err, f.Close())
}
