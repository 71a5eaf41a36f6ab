package jail

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"github.com/pandastack/pandastack/internal/lib/filelock"
	"github.com/pandastack/pandastack/internal/os/seccomp"
)

// ErrNoCgroup reports that the cgroup to adopt does not exist.
var ErrNoCgroup = errors.New("no such control group")

// Config configures a Manager.
type Config struct {
	Hierarchy Hierarchy // from Probe
	Prefix    string    // name of the parent cgroup; "": "panda"
	FirstUID  int       // first user and group ID; 0: derived from Prefix, at least 1900000000
	UIDs      int       // number of user IDs; 0: 16384
	// ProgramsDir is the directory for the copies of programs that run in jails. Its file system
	// must allow running programs. If it is empty, no process can be started in a jail.
	ProgramsDir string
	// LockDir is where user IDs are claimed, for all processes of the host; "": filelock.Dir.
	LockDir string
	// OnRefusedCall is called with each system call that the policy of a jail does not allow. It must
	// not block. A process can make many such calls.
	OnRefusedCall func(RefusedCall)
	// RecordCalls lets these calls continue unless they serve attacks (Spec.Syscalls), to find out
	// which calls a program makes.
	RecordCalls bool
}

const (
	// The user IDs are in a part of the 31-bit range that systemd leaves unused
	// (systemd.io/UIDS-GIDS): above those of containers, which end at 1879048191, and below foreign
	// IDs, which start at 2147352576.
	lowestUID   = 1900000000
	highestUID  = 2147352575
	defaultUIDs = 16384
	// parentWeight is the CPU weight of all our cgroups together. It is the kernel's default: with more, busy
	// machines would take the processors from the process that manages them, and no user could stop them.
	parentWeight = 100
)

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// firstUID returns the first user ID of a prefix's own range, so that two Managers on a host
// usually share no IDs.
func firstUID(prefix string, uids int) int {
	ranges := (highestUID - lowestUID + 1) / uids
	if ranges < 1 {
		return lowestUID
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(prefix)) // never fails
	return lowestUID + int(h.Sum64()%uint64(ranges))*uids
}

// ErrUIDsInUse reports that another process on this host has claimed the same user IDs.
var ErrUIDsInUse = errors.New("another process uses the same range of user IDs for jails")

// Manager creates cgroups and jails.
type Manager struct {
	cfg      Config
	programs *programNamespace
	claim    *filelock.Lock // held by ClaimUIDs; nil: none

	handlers sync.WaitGroup // of refused calls

	mu        sync.Mutex
	groups    map[string]*Cgroup             // +checklocks:mu
	listeners map[*seccomp.Listener]struct{} // +checklocks:mu
}

// New returns a Manager after validating the configuration. It does not access the host.
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
		return nil, fmt.Errorf("jail: %[2]d user IDs from %[1]d on are out of range", c.FirstUID, c.UIDs)
	}
	return &Manager{
		cfg:      c,
		programs: &programNamespace{dir: c.ProgramsDir, roots: map[string]*programRoot{}},
		groups:   map[string]*Cgroup{}, listeners: map[*seccomp.Listener]struct{}{},
	}, nil
}

// Hierarchy returns the cgroup hierarchies in use.
func (m *Manager) Hierarchy() Hierarchy { return m.cfg.Hierarchy }

// ClaimUIDs reserves the user IDs until Close or until this process exits. It returns ErrUIDsInUse
// if another process has reserved them.
func (m *Manager) ClaimUIDs() error {
	l, err := filelock.Acquire(m.cfg.LockDir, fmt.Sprintf("jail-users-%d", m.cfg.FirstUID))
	switch {
	case errors.Is(err, filelock.ErrHeld):
		return fmt.Errorf(
			"prefix %s, users %d to %d: %w",
			m.cfg.Prefix,
			m.cfg.FirstUID,
			m.cfg.FirstUID+m.cfg.UIDs-1,
			ErrUIDsInUse,
		)
	case err != nil:
		return fmt.Errorf("claim users: %w", err)
	}
	m.claim = l
	return nil
}

// User returns the user and group ID for an index, starting at 0. No other process uses these IDs.
func (m *Manager) User(index int) (uid, gid int, err error) {
	if index < 0 || index >= m.cfg.UIDs {
		return 0, 0, fmt.Errorf("jail: no user ID for index %d: there are %d", index, m.cfg.UIDs)
	}
	return m.cfg.FirstUID + index, m.cfg.FirstUID + index, nil
}

// Create creates a cgroup with limits. A cgroup of the same name that this process does not own is
// a leftover and is destroyed first. After an error no cgroup is left.
func (m *Manager) Create(ctx context.Context, name string, limits Limits) (g *Cgroup, err error) {
	if !nameForm.MatchString(name) {
		return nil, fmt.Errorf("control group name %q is not made of a-z, 0-9 and -", name)
	}
	if g, err = m.reserve(name, limits); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(
				fmt.Errorf("create control group %s: %w", name, err),
				g.Destroy(context.WithoutCancel(ctx)),
			)
			g = nil
		}
	}()
	if err := g.killAndRemove(ctx); err != nil {
		return g, err
	}
	for _, root := range m.cfg.Hierarchy.roots() {
		parent := filepath.Join(root, m.cfg.Prefix)
		if err := m.makeParent(root, parent); err != nil {
			return g, err
		}
		if err := os.Mkdir(filepath.Join(parent, name), 0o755); err != nil {
			return g, err
		}
	}
	return g, g.limit()
}

func (m *Manager) reserve(name string, limits Limits) (*Cgroup, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups[name] != nil {
		return nil, fmt.Errorf("control group %s already exists", name)
	}
	g := &Cgroup{manager: m, name: name, limits: limits}
	m.groups[name] = g
	return g, nil
}

func (m *Manager) makeParent(root, dir string) error {
	err := os.Mkdir(dir, 0o755)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err == nil && m.cfg.Hierarchy.Version == 2 {
		if err := delegate(dir); err != nil {
			return err
		}
	}
	if root != m.cfg.Hierarchy.CPU {
		return nil
	}
	weight, _, _ := settings(m.cfg.Hierarchy.Version, Limits{CPUWeight: parentWeight})
	return writeAll(dir, weight)
}

// Adopt takes over a cgroup that an earlier process created. It returns ErrNoCgroup if there is
// none.
func (m *Manager) Adopt(_ context.Context, name string, limits Limits) (*Cgroup, error) {
	if !nameForm.MatchString(name) {
		return nil, fmt.Errorf("adopt control group %q: %w", name, ErrNoCgroup)
	}
	for _, root := range m.cfg.Hierarchy.roots() {
		if _, err := os.Stat(filepath.Join(root, m.cfg.Prefix, name)); err != nil {
			return nil, fmt.Errorf("adopt control group %s: %w", name, ErrNoCgroup)
		}
	}
	return m.reserve(name, limits)
}

// Sweep destroys the cgroups that this process neither created nor adopted, and returns their number.
// All processes in them are killed.
func (m *Manager) Sweep(ctx context.Context) (int, error) {
	found, err := m.leftovers()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, name := range found {
		g, err2 := m.reserve(name, Limits{})
		if err2 != nil { // in use by this process
			continue
		}
		n++
		err = errors.Join(err, g.Destroy(ctx))
	}
	return n, err
}

func (m *Manager) leftovers() ([]string, error) {
	var names []string
	for _, root := range m.cfg.Hierarchy.roots() {
		list, err := os.ReadDir(filepath.Join(root, m.cfg.Prefix))
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

// Close removes the parent cgroup if it is empty. Otherwise the cgroups and their processes remain;
// system calls that they are not allowed fail without a report.
func (m *Manager) Close() error {
	all := errors.Join(m.programs.close(), m.closeListeners())
	if m.claim != nil {
		all = errors.Join(all, m.claim.Release())
		m.claim = nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.groups) > 0 {
		return all
	}
	for _, root := range m.cfg.Hierarchy.roots() {
		all = errors.Join(all, removeDir(filepath.Join(root, m.cfg.Prefix)))
	}
	return all
}

func removeDir(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove control group: %w", err)
	}
	return nil
}
