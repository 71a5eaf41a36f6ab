// Package passwd looks up users and groups of the root file system it runs in.
//
// It reads /etc/passwd and /etc/group itself, without cgo, and reads them again for each lookup, because programs add
// and remove users. It holds no state and is safe for concurrent use.
package passwd

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// User is an entry of /etc/passwd with its supplementary groups.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32
	Home   string // absolute
	Shell  string
}

// Resolve makes p absolute. "~" and relative paths start at the user's home directory.
func (u *User) Resolve(p string) string {
	switch {
	case p == "~" || strings.HasPrefix(p, "~/"):
		return path.Join(u.Home, p[1:])
	case path.IsAbs(p):
		return path.Clean(p)
	}
	return path.Join(u.Home, p)
}

// Database finds users. Root is empty except in tests.
type Database struct{ Root string }

// Lookup finds a user by name or number; "" is root. A number without an entry is a user with home directory /. If no
// user matches, the error is guestapi.ErrNotFound.
func (d Database) Lookup(name string) (User, error) {
	if name == "" {
		name = "root"
	}
	passwd, err := d.read("/etc/passwd")
	if err != nil {
		return User{}, err
	}
	number, numeric := parseID(name)
	for line := range lines(passwd) {
		f := strings.Split(line, ":")
		if len(f) < 7 {
			continue
		}
		uid, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 || f[0] != name && (!numeric || uid != number) {
			continue
		}
		u := User{Name: f[0], UID: uid, GID: gid, Home: f[5], Shell: f[6]}
		if !path.IsAbs(u.Home) {
			u.Home = "/"
		}
		if u.Shell == "" {
			u.Shell = "/bin/sh"
		}
		u.Groups, err = d.groups(u.Name)
		return u, err
	}
	if numeric || name == "root" {
		return User{Name: name, UID: number, GID: number, Home: "/", Shell: "/bin/sh"}, nil
	}
	return User{}, fmt.Errorf("user %q: %w", name, guestapi.ErrNotFound)
}

func (d Database) groups(user string) ([]uint32, error) {
	group, err := d.read("/etc/group")
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for line := range lines(group) {
		f := strings.Split(line, ":")
		if len(f) < 4 || !strings.Contains(f[3], user) {
			continue
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if id, ok := parseID(f[2]); ok && member == user {
				ids = append(ids, id)
				break
			}
		}
	}
	return ids, nil
}

// Group returns the number of a group given by name or number, and whether the group exists. A number needs no entry.
func (d Database) Group(name string) (uint32, bool) {
	if id, ok := parseID(name); ok {
		return id, true
	}
	for id, known := range d.ids("/etc/group") {
		if known == name {
			return id, true
		}
	}
	return 0, false
}

// Names maps user and group IDs to names. It reads each file once.
type Names struct {
	d             Database
	users, groups map[uint32]string
}

// Names returns a new table of names.
func (d Database) Names() *Names { return &Names{d: d} }

// User returns the name of uid, or the number as text.
func (n *Names) User(uid uint32) string {
	if n.users == nil {
		n.users = n.d.ids("/etc/passwd")
	}
	return name(n.users, uid)
}

// Group returns the name of gid, or the number as text.
func (n *Names) Group(gid uint32) string {
	if n.groups == nil {
		n.groups = n.d.ids("/etc/group")
	}
	return name(n.groups, gid)
}

func name(names map[uint32]string, id uint32) string {
	if s, ok := names[id]; ok {
		return s
	}
	return strconv.FormatUint(uint64(id), 10)
}

// ids returns the names of a file by number; none if the file cannot be read.
func (d Database) ids(file string) map[uint32]string {
	m := make(map[uint32]string)
	b, _ := d.read(file)
	for line := range lines(b) {
		f := strings.SplitN(line, ":", 4)
		if len(f) < 4 {
			continue
		}
		if id, ok := parseID(f[2]); ok {
			if _, twice := m[id]; !twice {
				m[id] = f[0]
			}
		}
	}
	return m
}

// maxFile is the maximum size of a database file, in bytes.
const maxFile = 1 << 20

// read returns the content of a file; nothing for one that does not exist, since an image without users has root. It
// does not use os.File, whose cost is noticeable in a machine that was just restored.
func (d Database) read(file string) ([]byte, error) {
	fd, err := unix.Open(d.Root+file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	defer func() { _ = unix.Close(fd) }() // the file was only read
	b := make([]byte, 0, 4<<10)
	for len(b) < maxFile {
		b = slices.Grow(b, 1<<10)
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		if n == 0 {
			return b, nil
		}
		b = b[:len(b)+n]
	}
	return nil, fmt.Errorf("%w: %s is longer than %d bytes", guestapi.ErrInvalid, file, maxFile)
}

func lines(b []byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		for line := range bytes.Lines(b) {
			if !yield(string(bytes.TrimRight(line, "\r\n"))) {
				return
			}
		}
	}
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil
}
