package repl

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
)

// maxSandboxes bounds the sandboxes whose variables are remembered, and maxEnvironment the bytes of those of one.
const (
	maxSandboxes   = 1024
	maxEnvironment = 64 << 10
)

// environmentTimeout is how long a sandbox may take to list its variables.
const environmentTimeout = 30 * time.Second

// ofProcess are variables that are of a process and its user, and not of the sandbox.
var ofProcess = []string{"_", "HOME", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "USER"}

// environments remembers the variables of sandboxes, which never change. The zero value is ready to use.
type environments struct {
	mu  sync.Mutex
	all map[string]map[string]string // by sandbox; guarded by mu
}

// Environment returns the variables of a sandbox for Cell.Defaults. It asks the guest for them once.
func (r *Runner) Environment(ctx context.Context, sandbox string, g guestapi.Guest) (map[string]string, error) {
	e := &r.environments
	e.mu.Lock()
	env, ok := e.all[sandbox]
	e.mu.Unlock()
	if ok {
		return env, nil
	}
	spec := guestapi.ProcessSpec{Argv: []string{"env", "-0"}, Timeout: environmentTimeout}
	limit := guestexec.Limit{Bytes: maxEnvironment}
	res, err := guestexec.Run(ctx, g, guestexec.Command{Spec: spec}, guestexec.Limits{Stdout: limit})
	if err != nil {
		return nil, fmt.Errorf("read the variables of the sandbox: %w", err)
	}
	env = parseEnvironment(string(res.Stdout.Data))
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		e.all = map[string]map[string]string{}
	}
	if len(e.all) >= maxSandboxes {
		for other := range e.all {
			delete(e.all, other)
			break
		}
	}
	e.all[sandbox] = env
	return env, nil
}

// parseEnvironment reads the output of env -0, of which the guest may have made anything.
func parseEnvironment(text string) map[string]string {
	env := map[string]string{}
	for entry := range strings.SplitSeq(text, "\x00") {
		name, value, ok := strings.Cut(entry, "=")
		if ok && name != "" && !slices.Contains(ofProcess, name) {
			env[name] = value
		}
	}
	return env
}
