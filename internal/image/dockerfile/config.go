package dockerfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
)

// configure executes instructions that change no file.
func (st *stageBuilder) configure(cmd instructions.Command) error {
	c := &st.stage.Config
	switch cmd := cmd.(type) {
	case *instructions.UserCommand:
		return st.setUser(cmd.User)
	case *instructions.ShellCommand:
		c.Shell = slices.Clone(cmd.Shell)
	case *instructions.LabelCommand:
		for _, kv := range cmd.Labels {
			if err := st.setLabel(kv.Key, kv.Value); err != nil {
				return err
			}
		}
	case *instructions.MaintainerCommand:
		st.warn("MAINTAINER is obsolete: use LABEL")
		return st.setLabel("maintainer", cmd.Maintainer)
	case *instructions.ExposeCommand:
		return st.expose(cmd)
	case *instructions.StopSignalCommand:
		if !validSignal.MatchString(cmd.Signal) {
			return fmt.Errorf("%q is not a signal: use a name or a number", truncate(cmd.Signal, 40))
		}
		c.StopSignal = cmd.Signal
	case *instructions.CmdCommand:
		c.Cmd, st.cmdSet = st.argv(cmd.CmdLine, cmd.PrependShell), true
	case *instructions.EntrypointCommand:
		c.Entrypoint = st.argv(cmd.CmdLine, cmd.PrependShell)
		if !st.cmdSet {
			c.Cmd = nil
		}
	case *instructions.HealthCheckCommand:
		return st.health(cmd.Health)
	default:
		return st.unsupported(strings.ToUpper(cmd.Name()), "builds cannot execute this instruction")
	}
	return nil
}

var (
	validUser   = regexp.MustCompile(`^[A-Za-z0-9_.][A-Za-z0-9_.@$-]{0,63}(:[A-Za-z0-9_.][A-Za-z0-9_.@$-]{0,63})?$`)
	validSignal = regexp.MustCompile(`^(SIG)?[A-Z][A-Z0-9+-]{1,15}$|^[1-9][0-9]?$`)
	validMode   = regexp.MustCompile(`^[0-7]{1,5}$`)
)

func (st *stageBuilder) setUser(user string) error {
	if !validUser.MatchString(user) {
		return fmt.Errorf("%q is not a user: use name, uid, name:group or uid:gid", truncate(user, 100))
	}
	st.stage.Config.User = user
	return nil
}

func (st *stageBuilder) argv(line []string, shell bool) []string {
	switch {
	case len(line) == 0:
		return nil
	case shell:
		return append(slices.Clone(st.stage.Config.Shell), strings.Join(line, " "))
	}
	return slices.Clone(line)
}

func (st *stageBuilder) health(h *dockerspec.HealthcheckConfig) error {
	if len(h.Test) == 0 || h.Test[0] == "NONE" {
		st.stage.Config.Health = &Health{None: true}
		return nil
	}
	argv := st.argv(h.Test[1:], h.Test[0] == "CMD-SHELL")
	if len(argv) == 0 {
		return errors.New("the command is empty")
	}
	st.stage.Config.Health = &Health{Argv: argv, Interval: h.Interval, Timeout: h.Timeout,
		StartPeriod: h.StartPeriod, StartInterval: h.StartInterval, Retries: h.Retries}
	return nil
}

// The bounds of the ports that EXPOSE names, after the expansion of ranges.
const (
	maxPorts    = 1000          // of one stage
	maxAllPorts = 20 * maxPorts // of all stages, repeated ones included
)

// expose adds ports: "80", "80/udp", "8000-8010/tcp".
func (st *stageBuilder) expose(cmd *instructions.ExposeCommand) error {
	c := &st.stage.Config
	c.Expose = slices.Clone(c.Expose)
	slices.Sort(c.Expose) // those of a base may be in any order
	for _, word := range cmd.Ports {
		ports, err := st.p.exp.words(word, st.env.m)
		if err != nil {
			return err
		}
		for _, text := range ports {
			first, last, proto, err := parsePorts(text)
			if err != nil {
				return err
			}
			if st.p.ports += last - first + 1; st.p.ports > maxAllPorts {
				return fmt.Errorf("more than %d ports in all", maxAllPorts)
			}
			for port := first; port <= last; port++ {
				name := strconv.Itoa(port) + "/" + proto
				if at, found := slices.BinarySearch(c.Expose, name); !found {
					c.Expose = slices.Insert(c.Expose, at, name)
				}
			}
			if len(c.Expose) > maxPorts {
				return fmt.Errorf("more than %d ports", maxPorts)
			}
		}
	}
	return nil
}

func parsePorts(text string) (first, last int, proto string, err error) {
	ports, proto, found := strings.Cut(text, "/")
	if !found {
		proto = "tcp"
	}
	proto = strings.ToLower(proto)
	low, high, isRange := strings.Cut(ports, "-")
	if !isRange {
		high = low
	}
	first, err1 := strconv.Atoi(low)
	last, err2 := strconv.Atoi(high)
	known := proto == "tcp" || proto == "udp" || proto == "sctp"
	if err1 != nil || err2 != nil || !known || first < 1 || last > 65535 || first > last || last-first >= maxPorts {
		return 0, 0, "", fmt.Errorf("%q is not a port: use 80, 80/udp or 8000-8010/tcp", truncate(text, 40))
	}
	return first, last, proto, nil
}
