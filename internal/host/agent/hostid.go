package agent

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Names in the data directory.
const (
	hostIDFile  = "host.id"
	machinesDir = "machines"
)

// hostIDPrefix starts the id of every host.
const hostIDPrefix = "hst"

// openHostID reads the id of this host, or makes it for a new data directory.
func openHostID(path string) (hostapi.HostID, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		id := hostIDPrefix + strings.ToLower(rand.Text())
		return hostapi.HostID(id), durable.WriteFile(path, []byte(id+"\n"), 0o644)
	}
	if err != nil {
		return "", err
	}
	id, ok := strings.CutSuffix(string(data), "\n")
	if !ok || !strings.HasPrefix(id, hostIDPrefix) || strings.Trim(id, idLetters) != "" {
		return "", fmt.Errorf("%s does not hold the id of a host: restore it, or remove it to make a new one", path)
	}
	return hostapi.HostID(id), nil
}
