package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/volume"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// content is one request for what a volume has.
type content struct {
	s      *Server
	ctx    context.Context
	r      *http.Request
	volume *volume.Service
	guest  guestapi.Guest
	path   string // absolute, from the root of the volume
	memory *budget.Account
}

// content returns a handler that calls f with the volume and the path of the request.
func (s *Server) content(write bool, f func(*content) (int, any, error)) handler {
	return func(r *http.Request, p auth.Principal) (_ int, _ any, err error) {
		all, err := s.volumes()
		if err != nil {
			return 0, nil, err
		}
		c := &content{s: s, r: r, volume: all, path: r.URL.Query().Get("path")}
		if err := api.ValidatePath("path", c.path); err != nil {
			return 0, nil, err
		}
		c.path = path.Clean("/" + c.path)
		c.memory = s.cfg.Memory.Open(string(p.Workspace))
		c.ctx = budget.NewContext(r.Context(), c.memory)
		guest, release, err := all.Files(c.ctx, p, r.PathValue("id"), write)
		if err != nil {
			c.memory.Close()
			return 0, nil, err
		}
		c.guest = guest
		end := func() { release(); c.memory.Close() }
		status, body, err := f(c)
		if d, ok := body.(*download); ok && err == nil {
			d.end = end
			return status, d, nil
		}
		end()
		return status, body, hosterror.OfGuest(err, c.path)
	}
}

// entryStat is a file as the protocol shows it.
type entryStat struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`
	Path   string    `json:"path"`
	Size   int64     `json:"size"`
	Mode   uint32    `json:"mode"`
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	ATime  time.Time `json:"atime"`
	MTime  time.Time `json:"mtime"`
	CTime  time.Time `json:"ctime"`
	Target string    `json:"target,omitempty"`
}

// newEntryStat returns a file as the protocol shows it. Guests report one time, that of the last modification.
func newEntryStat(f guestapi.FileInfo) entryStat {
	at := f.Modified.UTC()
	e := entryStat{Name: f.Name, Type: "unknown", Path: f.Path, Size: f.Size, Mode: f.Mode, UID: f.UID, GID: f.GID,
		ATime: at, MTime: at, CTime: at, Target: f.Target}
	switch f.Kind {
	case guestapi.KindFile:
		e.Type = "file"
	case guestapi.KindDir:
		e.Type = "directory"
	case guestapi.KindSymlink:
		e.Type = "symlink"
	case guestapi.KindOther:
	}
	return e
}

// stat returns a status and the file at the path.
func (c *content) stat(status int) (int, any, error) {
	info, err := c.guest.Stat(c.ctx, c.path, "")
	if err != nil {
		return 0, nil, err
	}
	return status, newEntryStat(info), nil
}

func statPath(c *content) (int, any, error) { return c.stat(http.StatusOK) }

// attributes are what a request sets of a file; nil: it stays.
type attributes struct {
	UID  *uint32 `json:"uid"`
	GID  *uint32 `json:"gid"`
	Mode *uint32 `json:"mode"`
}

// DecidesAccess implements lenient.Strict.
func (attributes) DecidesAccess() {}

// Bounds of attributes. The largest number of a user or group means none to programs.
const (
	maxOwner = 1<<32 - 2
	maxMode  = 0o7777
)

func (a attributes) check() error {
	for _, f := range []struct {
		name  string
		value *uint32
		most  uint32
	}{{"uid", a.UID, maxOwner}, {"gid", a.GID, maxOwner}, {"mode", a.Mode, maxMode}} {
		if f.value != nil && *f.value > f.most {
			return api.Errorf(api.Invalid, "%s: %d is not from 0 to %d", f.name, *f.value, f.most).With("field", f.name)
		}
	}
	return nil
}

// parseAttributes reads attributes from a query.
func parseAttributes(q url.Values) (a attributes, err error) {
	for _, f := range []struct {
		name string
		to   **uint32
		most int64
	}{{"uid", &a.UID, maxOwner}, {"gid", &a.GID, maxOwner}, {"mode", &a.Mode, maxMode}} {
		if q.Get(f.name) == "" {
			continue
		}
		n, err := intParam(q, f.name, f.most, 0)
		if err != nil {
			return a, err
		}
		value := uint32(n) //nolint:gosec // within the bound
		*f.to = &value
	}
	return a, nil
}

// parseForce reads the field of that name from a query.
func parseForce(q url.Values) (bool, error) {
	text := q.Get("force")
	if text == "" {
		return false, nil
	}
	force, err := strconv.ParseBool(text)
	if err != nil {
		return false, api.Errorf(api.Invalid, "force: %.20q is not true or false", text).With("field", "force")
	}
	return force, nil
}

// set changes the attributes of the file at a path.
func (c *content) set(at string, a attributes) error {
	if a == (attributes{}) {
		return nil
	}
	return c.volume.SetAttributes(c.ctx, c.guest, at, a.UID, a.GID, a.Mode)
}

func changePath(c *content) (int, any, error) {
	var a attributes
	if err := c.s.decode(c.r, &a); err != nil {
		return 0, nil, err
	}
	if err := a.check(); err != nil {
		return 0, nil, err
	}
	if status, body, err := c.stat(http.StatusOK); err != nil || a == (attributes{}) {
		return status, body, err
	}
	if err := c.set(c.path, a); err != nil {
		return 0, nil, err
	}
	return c.stat(http.StatusOK)
}

// removePath removes a file, or a directory with everything below it.
func removePath(c *content) (int, any, error) {
	if c.path == "/" {
		return 0, nil, api.Errorf(api.Invalid, "path: the root of a volume cannot be removed").With("field", "path")
	}
	return http.StatusNoContent, nil, c.guest.Remove(c.ctx, c.path, "", true)
}

// maxListDepth bounds the levels of one listing.
const maxListDepth = 64

// entryBytes is more than an entry of a listing takes besides the text that it shares with the guest's.
const entryBytes = 512

func listDir(c *content) (int, any, error) {
	depth, err := intParam(c.r.URL.Query(), "depth", maxListDepth, 1)
	if err != nil {
		return 0, nil, err
	}
	all, err := c.guest.List(c.ctx, c.path, "", int(max(depth, 1)))
	if err != nil {
		return 0, nil, err
	}
	if err := c.memory.Take(entryBytes * int64(len(all))); err != nil {
		return 0, nil, err
	}
	out := make([]entryStat, 0, len(all))
	for _, info := range all {
		out = append(out, newEntryStat(info))
	}
	return http.StatusOK, out, nil
}

// kindAt returns what is at a path; 0: nothing.
func (c *content) kindAt(at string) (guestapi.FileKind, error) {
	info, err := c.guest.Stat(c.ctx, at, "")
	if errors.Is(err, guestapi.ErrNotFound) || errors.Is(err, guestapi.ErrNotDir) {
		return 0, nil
	}
	return info.Kind, err
}

// maxParents bounds the directories that one request makes.
const maxParents = 64

// needParent checks that the directory of a path is there. With force it makes what is missing, with owner and group
// if a has them.
func (c *content) needParent(at string, force bool, a attributes) error {
	var missing []string
	for dir := path.Dir(at); dir != "/"; dir = path.Dir(dir) {
		kind, err := c.kindAt(dir)
		if err != nil {
			return err
		}
		if kind != 0 {
			break
		}
		if missing = append(missing, dir); len(missing) > maxParents {
			return api.Errorf(api.Invalid, "path: more than %d directories above it are missing", maxParents).
				With("field", "path")
		}
	}
	if len(missing) > 0 && !force {
		return api.Errorf(api.NotFound, "%s: the directory %s does not exist: make it, or send force=true", at,
			missing[0])
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if _, err := c.guest.MakeDir(c.ctx, missing[i], ""); err != nil && !errors.Is(err, guestapi.ErrExists) {
			return err
		}
		if err := c.set(missing[i], attributes{UID: a.UID, GID: a.GID}); err != nil {
			return err
		}
	}
	return nil
}

// changes reads what a request for a new file or directory sets.
func (c *content) changes() (a attributes, force bool, err error) {
	q := c.r.URL.Query()
	if a, err = parseAttributes(q); err != nil {
		return a, false, err
	}
	force, err = parseForce(q)
	return a, force, err
}

// makeDir makes a directory. With force also those above it, and one that is there stays as it is.
func makeDir(c *content) (int, any, error) {
	a, force, err := c.changes()
	if err != nil {
		return 0, nil, err
	}
	kind, err := c.kindAt(c.path)
	switch {
	case err != nil:
		return 0, nil, err
	case kind == guestapi.KindDir && force:
		return c.stat(http.StatusCreated)
	case kind != 0:
		return 0, nil, api.Errorf(api.Conflict, "%s: exists already", c.path)
	}
	if err := c.needParent(c.path, force, a); err != nil {
		return 0, nil, err
	}
	if _, err := c.guest.MakeDir(c.ctx, c.path, ""); err != nil {
		return 0, nil, err
	}
	if err := c.set(c.path, a); err != nil {
		return 0, nil, err
	}
	return c.stat(http.StatusCreated)
}

// writeFile writes a file. With force it makes the directories above it, and replaces a file that is there.
func writeFile(c *content) (int, any, error) {
	a, force, err := c.changes()
	if err != nil {
		return 0, nil, err
	}
	kind, err := c.kindAt(c.path)
	switch {
	case err != nil:
		return 0, nil, err
	case kind == guestapi.KindDir:
		return 0, nil, api.Errorf(api.Conflict, "%s: is a directory", c.path)
	case kind != 0 && !force:
		return 0, nil, api.Errorf(api.Conflict, "%s: exists already: send force=true to replace it", c.path)
	}
	if err := c.needParent(c.path, force, a); err != nil {
		return 0, nil, err
	}
	opt := guestapi.WriteOptions{Size: c.r.ContentLength}
	if a.Mode != nil {
		opt.Mode = *a.Mode
	}
	from := &slowBody{Reader: c.r.Body}
	if _, err := c.guest.Write(c.ctx, c.path, opt, from); err != nil {
		return 0, nil, errors.Join(from.err, err)
	}
	if err := c.set(c.path, a); err != nil {
		return 0, nil, err
	}
	return c.stat(http.StatusCreated)
}

// slowBody remembers that a body came too slowly, which its reader does not pass on as such.
type slowBody struct {
	io.Reader
	err error
}

func (b *slowBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if slow, ok := errors.AsType[*api.Error](err); ok {
		b.err = slow
	}
	return n, err
}

// copyBuffer is how much of a file is sent at once.
const copyBuffer = 256 << 10

// download is the content of a file, which is sent when the response has begun.
type download struct {
	info guestapi.FileInfo
	body io.ReadCloser
	end  func() // ends the use of the volume
}

func readFile(c *content) (int, any, error) {
	info, body, err := c.guest.Read(c.ctx, c.path, "", 0, -1)
	if err != nil {
		return 0, nil, err
	}
	err = c.memory.Take(copyBuffer)
	if info.Kind != guestapi.KindFile {
		err = api.Errorf(api.Invalid, "%s: is not a file: list a directory with dir", c.path).With("field", "path")
	}
	if err != nil {
		return 0, nil, errors.Join(err, body.Close())
	}
	return http.StatusOK, &download{info: info, body: body}, nil
}

// send sends the file. If the guest fails in the middle, less than the announced length is sent, which is an error to
// the client: after the status was sent, that is the only way to report it.
func (d *download) send(w http.ResponseWriter) {
	defer d.end()
	defer d.body.Close() //nolint:errcheck // it was only read
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.FormatInt(d.info.Size, 10))
	w.WriteHeader(http.StatusOK)
	from := io.LimitReader(d.body, d.info.Size) // the file may grow meanwhile
	// The client or the guest is gone if this fails.
	_, _ = io.CopyBuffer(struct{ io.Writer }{w}, from, make([]byte, copyBuffer))
}

// mounts returns the volumes that a request for a sandbox names.
func (n *newSandbox) mounts() []api.VolumeMount {
	var all []api.VolumeMount
	for _, m := range n.VolumeMounts {
		all = append(all, api.VolumeMount{Name: m.Name, MountPath: m.Path})
	}
	return all
}

// checkMounts refuses mounts by the names of this protocol.
func (n *newSandbox) checkMounts() error {
	for i, m := range n.mounts() {
		field := fmt.Sprintf("volumeMounts[%d]", i)
		if m.MountPath == "" {
			return api.Errorf(api.Invalid, "%s.path: is empty; name a directory, such as /mnt/data", field).
				With("field", field+".path")
		}
		if err := m.Validate(); err != nil {
			text := strings.Replace(api.AsError(err).Message, "mount_path", "path", 1)
			return api.Errorf(api.Invalid, "%s.%s", field, text).With("field", field)
		}
	}
	return nil
}
