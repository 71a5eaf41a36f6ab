package config

import (
	"os"

	"github.com/pandastack/pandastack/internal/lib/systemd"
)

// ServiceManager returns the systemd that started this process, the zero Manager if none did. env is in the form of
// os.Environ.
func ServiceManager(env []string) (systemd.Manager, error) {
	return systemd.FromEnv(environment(env), os.Getpid())
}
