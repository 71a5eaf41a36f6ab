package volume

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume/helper"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// Files returns a guest whose files are those of a volume: the root of every path is that of the volume. The guest of
// the sandbox that writes to the volume is used if it runs, a hidden machine otherwise. What was written is on the
// medium when a call returns. release must be called.
//
// volume.in_use: a sandbox that does not run has the volume, and write is set.
func (s *Service) Files(
	ctx context.Context,
	p auth.Principal,
	name string,
	write bool,
) (_ guestapi.Guest, release func(), err error) {
	v, err := s.find(ctx, p, name)
	if err != nil {
		return nil, nil, api.AsError(err)
	}
	if holder := hostapi.ParseOwner(v.Holder); holder.Kind == hostapi.OwnerSandbox {
		g, err := s.filesOfSandbox(ctx, p, api.SandboxID(holder.ID), v)
		if err != nil || g != nil {
			return g, func() {}, err
		}
		if write {
			return nil, nil, lease.InUse(v)
		}
	}
	g, release, err := s.helpers.Open(ctx, v, write)
	if err != nil {
		return nil, nil, api.AsError(err)
	}
	return &volumeGuest{Guest: g, root: helper.Mount, name: v.Name}, release, nil
}

// filesOfSandbox returns the files of a volume in the sandbox that has it; nil if the sandbox does not run.
func (s *Service) filesOfSandbox(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	v store.Volume,
) (guestapi.Guest, error) {
	box, err := s.boxes.Get(ctx, p, id)
	if api.CodeOf(err) == api.NotFound {
		return nil, nil
	}
	if err != nil || box.Status != api.Running {
		return nil, err
	}
	has, err := volumeOf(box, v.ID)
	if err != nil {
		return nil, nil //nolint:nilerr // it is being attached: there is no mount point yet
	}
	g, err := s.boxes.Guest(ctx, p, id)
	if err != nil {
		return nil, err
	}
	return &volumeGuest{Guest: g, root: has.MountPath, name: v.Name}, nil
}

// volumeGuest shows the files below a directory of a guest, as root.
type volumeGuest struct {
	guestapi.Guest
	root string
	name string // of the volume
}

const root = "root"

// below returns where a path of the volume is in the guest.
func (g *volumeGuest) below(p string) string { return path.Join(g.root, path.Clean("/"+p)) }

// inside makes the path of a result one of the volume.
func (g *volumeGuest) inside(info guestapi.FileInfo) guestapi.FileInfo {
	info.Path = "/" + strings.TrimPrefix(strings.TrimPrefix(info.Path, g.root), "/")
	info.Name = path.Base(info.Path)
	return info
}

// Stat implements guestapi.Guest.
func (g *volumeGuest) Stat(ctx context.Context, p, _ string) (guestapi.FileInfo, error) {
	info, err := g.Guest.Stat(ctx, g.below(p), root)
	return g.inside(info), err
}

// List implements guestapi.Guest.
func (g *volumeGuest) List(ctx context.Context, p, _ string, depth int) ([]guestapi.FileInfo, error) {
	all, err := g.Guest.List(ctx, g.below(p), root, depth)
	for i := range all {
		all[i] = g.inside(all[i])
	}
	return all, err
}

// Read implements guestapi.Guest.
func (g *volumeGuest) Read(
	ctx context.Context,
	p, _ string,
	offset, length int64,
) (guestapi.FileInfo, io.ReadCloser, error) {
	info, r, err := g.Guest.Read(ctx, g.below(p), root, offset, length)
	return g.inside(info), r, err
}

// Write implements guestapi.Guest. A new file belongs to whom its directory belongs to.
func (g *volumeGuest) Write(
	ctx context.Context,
	p string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (guestapi.FileInfo, error) {
	opt.User = root
	at := g.below(p)
	_, err := g.Guest.Stat(ctx, at, root)
	isNew := errors.Is(err, guestapi.ErrNotFound)
	info, err := g.Guest.Write(ctx, at, opt, r)
	if err == nil && isNew {
		info, err = g.inherit(ctx, at, info)
	}
	return g.inside(info), g.synced(ctx, err)
}

// inherit gives a new file the owner of its directory.
func (g *volumeGuest) inherit(
	ctx context.Context,
	at string,
	info guestapi.FileInfo,
) (guestapi.FileInfo, error) {
	dir, err := g.Guest.Stat(ctx, path.Dir(at), root)
	if err != nil || dir.UID == info.UID && dir.GID == info.GID {
		return info, err
	}
	if err := g.run(ctx, "chown", "-h", fmt.Sprintf("%d:%d", dir.UID, dir.GID), at); err != nil {
		return info, err
	}
	return g.Guest.Stat(ctx, at, root)
}

// Move implements guestapi.Guest.
func (g *volumeGuest) Move(ctx context.Context, from, to, _ string) (guestapi.FileInfo, error) {
	info, err := g.Guest.Move(ctx, g.below(from), g.below(to), root)
	return g.inside(info), g.synced(ctx, err)
}

// Remove implements guestapi.Guest.
func (g *volumeGuest) Remove(ctx context.Context, p, _ string, recursive bool) error {
	if g.below(p) == g.root {
		return fmt.Errorf("the root of a volume: %w", guestapi.ErrInvalid)
	}
	return g.synced(ctx, g.Guest.Remove(ctx, g.below(p), root, recursive))
}

// MakeDir implements guestapi.Guest. A new directory belongs to whom the one above belongs to.
func (g *volumeGuest) MakeDir(ctx context.Context, p, _ string) (guestapi.FileInfo, error) {
	info, err := g.Guest.MakeDir(ctx, g.below(p), root)
	if err == nil {
		info, err = g.inherit(ctx, g.below(p), info)
	}
	return g.inside(info), g.synced(ctx, err)
}

// synced waits until what was written is on the medium.
func (g *volumeGuest) synced(ctx context.Context, err error) error {
	if errors.Is(err, guestapi.ErrNoSpace) {
		return errFull()
	}
	if err != nil {
		return err
	}
	return g.run(ctx, "sync", "-f", g.root)
}

// commandTimeout bounds a program that changes or flushes files.
const commandTimeout = time.Minute

// run runs a program in the guest.
func (g *volumeGuest) run(ctx context.Context, argv ...string) error {
	return runProgram(ctx, g.Guest, guestexec.Command{
		Spec:     guestapi.ProcessSpec{Argv: argv, User: root, Dir: "/", Timeout: commandTimeout},
		Overtime: 10 * time.Second,
	}, nil)
}

func errFull() error {
	return api.Errorf(api.NoSpace, "the volume is full: delete files, or make it larger with size_mb")
}

// maxComplaint bounds what is kept of what a program prints to standard error.
const maxComplaint = 2 << 10

// runProgram runs a program in a guest and hands its output to out.
func runProgram(ctx context.Context, g guestexec.Guest, cmd guestexec.Command, out io.Writer) error {
	var complaint bytes.Buffer
	st, err := guestexec.Stream(ctx, g, cmd, guestexec.Sink{Output: func(e guestapi.Event) error {
		if e.Stream == guestapi.StreamStderr {
			if room := maxComplaint - complaint.Len(); room > 0 {
				complaint.Write(e.Data[:min(room, len(e.Data))])
			}
			return nil
		}
		if out == nil {
			return nil
		}
		_, err := out.Write(e.Data)
		return err
	}})
	if err == nil && st.InputErr != nil && st.Exit.Code == 0 {
		err = st.InputErr
	}
	if err != nil {
		return err
	}
	text := strings.ToValidUTF8(strings.TrimSpace(complaint.String()), "?")
	switch {
	case st.Exit.Code == 0 && st.Exit.Error == "" && !st.Exit.TimedOut:
		return nil
	case strings.Contains(text, "No space left on device"):
		return errFull()
	}
	return api.Errorf(api.Invalid, "%s exited with status %d: %s", cmd.Spec.Argv[0], st.Exit.Code,
		strings.TrimSpace(st.Exit.Error+" "+text))
}

// SetAttributes changes owner, group and permissions of a file of a volume; nil leaves one as it is.
func (s *Service) SetAttributes(ctx context.Context, g guestapi.Guest, p string, uid, gid, mode *uint32) error {
	v, ok := g.(*volumeGuest)
	if !ok {
		return errors.New("volume: the guest is not of Files")
	}
	owner := ""
	if uid != nil {
		owner = fmt.Sprint(*uid)
	}
	if gid != nil {
		owner += fmt.Sprintf(":%d", *gid)
	}
	if owner != "" {
		if err := v.run(ctx, "chown", "-h", owner, v.below(p)); err != nil {
			return err
		}
	}
	if mode != nil {
		if err := v.run(ctx, "chmod", fmt.Sprintf("%04o", *mode&0o7777), v.below(p)); err != nil {
			return err
		}
	}
	return v.synced(ctx, nil)
}

// Import unpacks a tar stream into a directory of a volume, which is made if it is missing. Files that are there stay
// unless the stream has them.
func (s *Service) Import(ctx context.Context, p auth.Principal, name, dir string, r io.Reader) error {
	g, release, err := s.Files(ctx, p, name, true)
	if err != nil {
		return err
	}
	defer release()
	v := g.(*volumeGuest) //nolint:forcetypeassert // Files returns no other
	if _, err := v.MakeDir(ctx, dir, root); err != nil && !errors.Is(err, guestapi.ErrExists) {
		return hosterror.OfGuest(err, cmp.Or(dir, "/"))
	}
	err = runProgram(ctx, v.Guest, guestexec.Command{
		Spec: guestapi.ProcessSpec{
			Argv: []string{"tar", "-x", "-p", "-f", "-", "-C", v.below(dir)}, User: root, Dir: "/", Stdin: true,
		},
		Input: func(_ context.Context, w io.Writer) error {
			_, err := io.Copy(w, r)
			return err
		},
	}, nil)
	if err != nil {
		return hosterror.OfGuest(err, cmp.Or(dir, "/"))
	}
	return hosterror.Wrap(v.synced(ctx, nil), "flush volume", name)
}

// Export writes a directory of a volume as a tar stream.
//
// It is of one moment unless a sandbox writes to the volume meanwhile.
func (s *Service) Export(ctx context.Context, p auth.Principal, name, dir string, w io.Writer) error {
	g, release, err := s.Files(ctx, p, name, false)
	if err != nil {
		return err
	}
	defer release()
	v := g.(*volumeGuest) //nolint:forcetypeassert // Files returns no other
	if info, err := v.Stat(ctx, dir, root); errors.Is(err, guestapi.ErrNotFound) {
		return api.Errorf(api.NotFound, "volume %s has no directory %.100q", name, dir)
	} else if err != nil {
		return hosterror.OfGuest(err, cmp.Or(dir, "/"))
	} else if info.Kind != guestapi.KindDir {
		return api.Errorf(api.Invalid, "path: %.100q is not a directory", dir).With("field", "path")
	}
	return hosterror.Wrap(runProgram(ctx, v.Guest, guestexec.Command{Spec: guestapi.ProcessSpec{
		Argv: []string{"tar", "-c", "-f", "-", "-C", v.below(dir), "."}, User: root, Dir: "/",
	}}, w), "export volume", name)
}
