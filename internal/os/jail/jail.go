package jail

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
)

// ErrNoCgroup says that there is no such group to adopt.
var ErrNoCgroup = errors.New("no such control group")

// Config says how a jail is to be.
type Config struct {
	Hierarchy Hierarchy // from Probe
	Prefix    string    // name of the group that holds all of ours; "": "panda"
	FirstUID  int       // first user and group id; 0: one that follows from Prefix, above 1900000000
	UIDs      int       // how many; 0: 16384
	// ProgramsDir is the directory that keeps copies of the programs that run in jails, on a file system that
	// programs can run from; "": no process can be started in a jail.
	ProgramsDir string
}

const (
	// Users lie in the part of the 31-bit ids that systemd's table of id ranges (systemd.io/UIDS-GIDS) leaves
	// unused: above the containers' (ends at 1879048191), below the foreign ids (begin at 2147352576).
	lowestUID   = 1900000000
	highestUID  = 2147352575
	defaultUIDs = 16384
	// parentWeight is the share of all our groups together, where an ordinary group on the host has 100: the
	// machines are what the host is for.
	parentWeight = 1000
)

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// firstUID gives each prefix its range of users, so that two jails on a host share none.
func firstUID(prefix string, uids int) int {
	ranges := (highestUID - lowestUID + 1) / uids
	if ranges < 1 {
		return lowestUID
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(prefix)) // it cannot fail
	return lowestUID + int(h.Sum64()%uint64(ranges))*uids
}

// ErrUIDsInUse says that another process on this host has claimed the same users.
var ErrUIDsInUse = errors.New("another process has jails with the same users")

// Manager makes groups.
type Manager struct {
	cfg      Config
	programs *programNamespace
	claim    net.Listener // of Claim; nil: none

	mu     sync.Mutex
	groups map[string]*Cgroup // +checklocks:mu
}

// New checks the configuration. It does not touch the host.
func New(c Config) (*Manager, error) {
	if c.Prefix == "" {
		c.Prefix = "panda"
	}
	if c.UIDs == 0 {
		c.UIDs = defaultUIDs
	}
	if c.FirstUID == 0 && c.UIDs > 0 {
		c.FirstUID = firstUID(c.Prefix, c.UIDs)
	}
	switch {
	case c.Hierarchy.Version != 1 && c.Hierarchy.Version != 2:
		return nil, fmt.Errorf("jail: %w", ErrNoControl)
	case !nameForm.MatchString(c.Prefix):
		return nil, fmt.Errorf("jail: prefix %q is not made of a-z, 0-9 and -", c.Prefix)
	case c.FirstUID < 1 || c.UIDs < 1 || c.FirstUID+c.UIDs > 1<<31-1:
		return nil, fmt.Errorf("jail: user ids from %d, %d of them, are not possible", c.FirstUID, c.UIDs)
	}
	return &Manager{cfg: c, programs: &programNamespace{dir: c.ProgramsDir, roots: map[string]*programRoot{}}, groups: map[string]*Cgroup{}}, nil
}

// Hierarchy tells which control groups are used.
func (j *Manager) Hierarchy() Hierarchy { return j.cfg.Hierarchy }

// ClaimUIDs keeps the users of this jail from others that call it, as long as this process lives or until Close:
// ErrUsersInUse. The claim is a socket name, so it holds among the processes of one network namespace.
func (j *Manager) ClaimUIDs() error {
	l, err := net.Listen("unix", fmt.Sprintf("@jail-users-%d", j.cfg.FirstUID))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf(
			"prefix %s, users %d to %d: %w",
			j.cfg.Prefix,
			j.cfg.FirstUID,
			j.cfg.FirstUID+j.cfg.UIDs-1,
			ErrUIDsInUse,
		)
	case err != nil:
		return fmt.Errorf("claim users: %w", err)
	}
	j.claim = l
	return nil
}

// User is the user and group id of an index, from 0: nobody else's.
func (j *Manager) User(index int) (uid, gid int, err error) {
	if index < 0 || index >= j.cfg.UIDs {
		return 0, 0, fmt.Errorf("jail: no user id for index %d of %d", index, j.cfg.UIDs)
	}
	return j.cfg.FirstUID + index, j.cfg.FirstUID + index, nil
}

// Create makes the group called name with limits. A group of that name that nobody has in this process is a
// remainder, and is destroyed first. After an error nothing of the group is left.
func (j *Manager) Create(ctx context.Context, name string, limits Limits) (g *Cgroup, err error) {
	if !nameForm.MatchString(name) {
		return nil, fmt.Errorf("control group name %q is not made of a-z, 0-9 and -", name)
	}
	if g, err = j.reserve(name, limits); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make control group %s: %w", name, err), g.Destroy(context.WithoutCancel(ctx)))
			g = nil
		}
	}()
	if err := g.killAndRemove(ctx); err != nil {
		return g, err
	}
	for _, root := range j.cfg.Hierarchy.roots() {
		parent := filepath.Join(root, j.cfg.Prefix)
		if err := j.makeParent(root, parent); err != nil {
			return g, err
		}
		if err := os.Mkdir(filepath.Join(parent, name), 0o755); err != nil {
			return g, err
		}
	}
	return g, g.limit()
}

func (j *Manager) reserve(name string, limits Limits) (*Cgroup, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.groups[name] != nil {
		return nil, fmt.Errorf("control group %s is there already", name)
	}
	g := &Cgroup{manager: j, name: name, limits: limits}
	j.groups[name] = g
	return g, nil
}

func (j *Manager) makeParent(root, dir string) error {
	if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	if j.cfg.Hierarchy.Version == 2 {
		if err := delegate(dir); err != nil {
			return err
		}
	}
	if root != j.cfg.Hierarchy.CPU {
		return nil
	}
	weight, _, _ := settings(j.cfg.Hierarchy.Version, Limits{CPUWeight: parentWeight})
	return writeAll(dir, weight)
}

// Adopt takes over a group that an earlier process made. ErrNoGroup: it is not there.
func (j *Manager) Adopt(_ context.Context, name string, limits Limits) (*Cgroup, error) {
	if !nameForm.MatchString(name) {
		return nil, fmt.Errorf("adopt control group %q: %w", name, ErrNoCgroup)
	}
	for _, root := range j.cfg.Hierarchy.roots() {
		if _, err := os.Stat(filepath.Join(root, j.cfg.Prefix, name)); err != nil {
			return nil, fmt.Errorf("adopt control group %s: %w", name, ErrNoCgroup)
		}
	}
	return j.reserve(name, limits)
}

// Sweep destroys the groups that are neither made nor adopted by this process, with all that runs in them,
// and says how many there were.
func (j *Manager) Sweep(ctx context.Context) (int, error) {
	found, err := j.leftovers()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, name := range found {
		g, err2 := j.reserve(name, Limits{})
		if err2 != nil { // owned
			continue
		}
		n++
		err = errors.Join(err, g.Destroy(ctx))
	}
	return n, err
}

func (j *Manager) leftovers() ([]string, error) {
	var names []string
	for _, root := range j.cfg.Hierarchy.roots() {
		list, err := os.ReadDir(filepath.Join(root, j.cfg.Prefix))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, e := range list {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Close removes the group that held all of ours, once it is empty; while groups are left it stays, and so do
// the processes in it.
func (j *Manager) Close() error {
	all := j.programs.close()
	if j.claim != nil {
		all = errors.Join(all, j.claim.Close())
		j.claim = nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.groups) > 0 {
		return all
	}
	for _, root := range j.cfg.Hierarchy.roots() {
		all = errors.Join(all, removeDir(filepath.Join(root, j.cfg.Prefix)))
	}
	return all
}

func removeDir(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove control group: %w", err)
	}
	return nil
}
