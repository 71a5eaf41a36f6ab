package sshgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// packetBytes is what package sftp can hold of requests and responses.
const packetBytes = 4 << 20

// sftp serves the subsystem sftp until the client ends it.
func (s *session) sftp(ctx context.Context) {
	began := time.Now()
	f, home, err := s.files(ctx)
	if err == nil {
		err = s.account.Take(packetBytes)
	}
	s.c.record(ctx, "ssh sftp", began, err)
	if err != nil {
		s.fail(err)
		return
	}
	defer f.end()
	server := sftp.NewRequestServer(s.ch, sftp.Handlers{FileGet: f, FilePut: f, FileCmd: f, FileList: f},
		sftp.WithStartDirectory(home), sftp.WithRSAllocator())
	err = server.Serve()
	if err != nil && !errors.Is(err, io.EOF) {
		s.exit(exitFailed) // the client broke the protocol, or has gone away
		return
	}
	s.exit(0)
}

// files opens the files of the sandbox for an sftp session, whose relative paths begin in home.
func (s *session) files(ctx context.Context) (f *files, home string, err error) {
	starting, cancel := context.WithTimeoutCause(ctx, s.c.gate.limits.Start, errTooLong)
	defer cancel()
	g, box, err := s.c.enter(starting, api.ScopeFiles)
	if err != nil {
		return nil, "", err
	}
	at := box.Workdir
	if at == "" {
		at = "."
	}
	info, err := g.Stat(starting, at, box.User)
	switch {
	case errors.Is(err, guestapi.ErrNotFound): // the user has no home
		info.Path = "/"
	case err != nil:
		return nil, "", hosterror.OfGuest(err, at)
	}
	ctx, end := context.WithCancel(ctx)
	return &files{
		ctx: ctx, end: end, guest: g, user: box.User, most: s.c.gate.limits.Files, account: s.account,
		writers: map[string][]*writer{},
	}, info.Path, nil
}

// files serves the requests of one sftp session. It implements the handlers of package sftp.
type files struct {
	ctx     context.Context //nolint:containedctx // that of the session, which the handlers are not given
	end     context.CancelFunc
	guest   guestapi.Guest
	user    string
	most    int             // open files
	account *budget.Account // pays for what is buffered

	mu      sync.Mutex
	open    int                  // files; guarded by mu
	writers map[string][]*writer // by path; guarded by mu
}

// errTooMany is the error of one more open file.
var errTooMany = errors.New("too many open files: close some first")

// enter counts an open file that buffers some bytes.
func (f *files) enter(bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open >= f.most {
		return errTooMany
	}
	if err := f.account.Take(bytes); err != nil {
		return err
	}
	f.open++
	return nil
}

func (f *files) leave(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open--
	f.account.Give(bytes)
}

// status returns the error that package sftp translates to a status of the protocol.
func status(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, guestapi.ErrNotFound):
		return os.ErrNotExist
	case errors.Is(err, guestapi.ErrPermission):
		return os.ErrPermission
	}
	return errors.New(guestapi.Printable(err.Error()))
}

// stat describes a file, following a last symbolic link.
func (f *files) stat(at string) (guestapi.FileInfo, error) {
	for range maxLinks {
		info, err := f.guest.Stat(f.ctx, at, f.user)
		if err != nil || info.Kind != guestapi.KindSymlink {
			return info, err
		}
		to := info.Target
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(at), to)
		}
		at = to
	}
	return guestapi.FileInfo{}, fmt.Errorf("%w: too many symbolic links", guestapi.ErrInvalid)
}

// maxLinks bounds a chain of symbolic links, as the kernel does.
const maxLinks = 40

// entry is a file as package sftp wants it.
type entry struct{ guestapi.FileInfo }

func (e entry) Name() string       { return path.Base(e.FileInfo.Name) }
func (e entry) Size() int64        { return e.FileInfo.Size }
func (e entry) ModTime() time.Time { return e.Modified }
func (e entry) IsDir() bool        { return e.Kind == guestapi.KindDir }
func (e entry) Sys() any           { return &sftp.FileStat{UID: e.UID, GID: e.GID} }

func (e entry) Mode() fs.FileMode {
	mode := fs.FileMode(e.FileInfo.Mode & 0o777)
	for _, bit := range []struct {
		set  uint32
		mode fs.FileMode
	}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}} {
		if e.FileInfo.Mode&bit.set != 0 {
			mode |= bit.mode
		}
	}
	switch e.Kind {
	case guestapi.KindFile:
	case guestapi.KindDir:
		mode |= fs.ModeDir
	case guestapi.KindSymlink:
		mode |= fs.ModeSymlink
	case guestapi.KindOther:
		mode |= fs.ModeIrregular
	}
	return mode
}

// entries is a list of files.
type entries []os.FileInfo

// ListAt implements sftp.ListerAt.
func (l entries) ListAt(out []os.FileInfo, offset int64) (int, error) {
	if offset < 0 || offset >= int64(len(l)) {
		return 0, io.EOF
	}
	n := copy(out, l[offset:])
	if n < len(out) {
		return n, io.EOF
	}
	return n, nil
}

// plainName reports whether a guest's name of an entry of a directory is one. Clients that copy directories join names
// to paths of their own.
func plainName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// directory is an open directory.
type directory struct {
	entries
	f      *files
	bytes  int64
	closed bool
}

// Close implements io.Closer. Package sftp calls it once it has removed the directory from its table.
func (d *directory) Close() error {
	if !d.closed {
		d.closed = true
		d.f.leave(d.bytes)
	}
	return nil
}

// Filelist implements sftp.FileLister.
func (f *files) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch r.Method {
	case "List":
		all, err := f.guest.List(f.ctx, r.Filepath, f.user, 1)
		if err != nil {
			return nil, status(err)
		}
		out := &directory{f: f, entries: make(entries, 0, len(all))}
		for _, one := range all {
			if plainName(one.Name) {
				out.entries = append(out.entries, entry{one})
				out.bytes += one.Bytes()
			}
		}
		if err := f.enter(out.bytes); err != nil {
			return nil, err
		}
		return out, nil
	case "Stat":
		info, err := f.stat(r.Filepath)
		return entries{entry{info}}, status(err)
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat implements sftp.LstatFileLister.
func (f *files) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	info, err := f.guest.Stat(f.ctx, r.Filepath, f.user)
	return entries{entry{info}}, status(err)
}

// Readlink implements sftp.ReadlinkFileLister.
func (f *files) Readlink(at string) (string, error) {
	info, err := f.guest.Stat(f.ctx, at, f.user)
	if err == nil && info.Kind != guestapi.KindSymlink {
		err = fmt.Errorf("%w: not a symbolic link", guestapi.ErrInvalid)
	}
	return info.Target, status(err)
}

// Filecmd implements sftp.FileCmder.
func (f *files) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		return status(f.setstat(r))
	case "Rename":
		if _, err := f.guest.Stat(f.ctx, r.Target, f.user); err == nil {
			return status(guestapi.ErrExists)
		} else if !errors.Is(err, guestapi.ErrNotFound) {
			return status(err)
		}
		return f.PosixRename(r)
	case "Remove", "Rmdir":
		return status(f.remove(r.Filepath, r.Method == "Rmdir"))
	case "Mkdir":
		if _, err := f.stat(path.Dir(r.Filepath)); err != nil {
			return status(err)
		}
		_, err := f.guest.MakeDir(f.ctx, r.Filepath, f.user)
		return status(err)
	case "Symlink":
		// The library calls the text of the link Filepath, and the place of the link Target.
		return status(f.run(f.ctx, "exec ln -s -- \"$1\" \"$2\"", r.Filepath, r.Target))
	case "Link":
		return status(f.run(f.ctx, "exec ln -- \"$1\" \"$2\"", r.Filepath, r.Target))
	}
	return sftp.ErrSSHFxOpUnsupported
}

// PosixRename implements sftp.PosixRenameFileCmder.
func (f *files) PosixRename(r *sftp.Request) error {
	_, err := f.guest.Move(f.ctx, r.Filepath, r.Target, f.user)
	return status(err)
}

// remove removes a file, or an empty directory.
func (f *files) remove(at string, directory bool) error {
	info, err := f.guest.Stat(f.ctx, at, f.user)
	switch {
	case err != nil:
		return err
	case directory && info.Kind != guestapi.KindDir:
		return guestapi.ErrNotDir
	case !directory && info.Kind == guestapi.KindDir:
		return guestapi.ErrIsDir
	}
	return f.guest.Remove(f.ctx, at, f.user, false)
}

// setstat changes size, owner, permissions and times of a file, what is written of it first.
func (f *files) setstat(r *sftp.Request) error {
	for _, w := range f.writing(r.Filepath) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	set, attrs := r.AttrFlags(), r.Attributes()
	script, args := []string{"set -e"}, []string{r.Filepath}
	add := func(command, value string) {
		args = append(args, value)
		script = append(script, fmt.Sprintf(command, len(args)))
	}
	if set.Size {
		add("truncate -s \"$%d\" -- \"$1\"", strconv.FormatUint(attrs.Size, 10))
	}
	if set.UidGid {
		add("chown \"$%d\" -- \"$1\"", fmt.Sprintf("%d:%d", attrs.UID, attrs.GID))
	}
	if set.Permissions {
		add("chmod \"$%d\" -- \"$1\"", fmt.Sprintf("%04o", attrs.Mode&0o7777))
	}
	if set.Acmodtime {
		add("touch -a -d \"@$%d\" -- \"$1\"", strconv.FormatUint(uint64(attrs.Atime), 10))
		add("touch -m -d \"@$%d\" -- \"$1\"", strconv.FormatUint(uint64(attrs.Mtime), 10))
	}
	if len(script) == 1 {
		return nil
	}
	return f.run(f.ctx, strings.Join(script, "\n"), args...)
}

// Bounds of the programs that do what the file service of guests does not.
const (
	maxMessage  = 1 << 10 // bytes of what they print
	programTime = time.Minute
)

// shell returns the program that runs a script, which gets args as $1, $2 and so on.
func (f *files) shell(script string, args ...string) guestapi.ProcessSpec {
	return guestapi.ProcessSpec{
		Argv: append([]string{"/bin/sh", "-c", script, "sftp"}, args...), User: f.user, Dir: "/",
		Env: map[string]string{"LC_ALL": "C"},
	}
}

// run runs a script in the sandbox.
func (f *files) run(ctx context.Context, script string, args ...string) error {
	spec := f.shell(script, args...)
	spec.Timeout = programTime
	limit := guestexec.Limit{Bytes: maxMessage}
	result, err := guestexec.Run(ctx, f.guest, guestexec.Command{Spec: spec, Overtime: programTime},
		guestexec.Limits{Stdout: limit, Stderr: limit})
	if err != nil {
		return err
	}
	return failure(result.Exit, string(result.Stderr.Data))
}

// failure returns the error of a program that failed.
func failure(exit guestapi.Exit, message string) error {
	message = strings.TrimSpace(message)
	switch {
	case exit.Error != "":
		return fmt.Errorf("%w: %s", guestapi.ErrInternal, exit.Error)
	case exit.Code == 0:
		return nil
	case strings.HasSuffix(message, "Permission denied"), strings.HasSuffix(message, "Operation not permitted"):
		return guestapi.ErrPermission
	case strings.HasSuffix(message, "No such file or directory"):
		return guestapi.ErrNotFound
	case message == "":
		message = fmt.Sprintf("exit code %d", exit.Code)
	}
	return errors.New(message)
}
