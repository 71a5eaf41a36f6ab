package envd

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	pb "github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/filesystem"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/filesystem/filesystemconnect"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

type filesystem struct{ s *Server }

var _ filesystemconnect.FilesystemHandler = (*filesystem)(nil)

// homeRelative turns a path that begins with ~/ into one relative to the user's home, as guests expect it.
func homeRelative(p string) string {
	if p == "~" || p == "~/" {
		return "."
	}
	return strings.TrimPrefix(p, "~/")
}

func parsePath(p string) (string, error) {
	if p == "" {
		return "", connect.NewError(
			connect.CodeInvalidArgument,
			errors.New("path: is empty; give a path, absolute or relative to the user's home"),
		)
	}
	return homeRelative(p), nil
}

func entryInfo(i guestapi.FileInfo) *pb.EntryInfo {
	e := &pb.EntryInfo{
		Name: i.Name, Path: i.Path, Size: i.Size, Mode: i.Mode & 0o7777, Owner: i.User, Group: i.Group,
		ModifiedTime: timestamppb.New(i.Modified), Metadata: i.Metadata,
	}
	mode := fs.FileMode(i.Mode & 0o777)
	switch i.Kind {
	case guestapi.KindFile:
		e.Type = pb.FileType_FILE_TYPE_FILE
	case guestapi.KindDir:
		e.Type = pb.FileType_FILE_TYPE_DIRECTORY
		mode |= fs.ModeDir
	case guestapi.KindSymlink:
		e.Type = pb.FileType_FILE_TYPE_SYMLINK
		mode |= fs.ModeSymlink
		e.SymlinkTarget = &i.Target
		if i.End != nil {
			e.SymlinkTarget, e.Type, e.Mode = &i.End.Path, linkType(i.End.Kind), i.End.Mode&0o777
		}
	}
	e.Permissions = mode.String()
	return e
}

// linkType returns the type of a symbolic link in this protocol: that of what it leads to.
func linkType(end guestapi.FileKind) pb.FileType {
	switch end {
	case guestapi.KindFile:
		return pb.FileType_FILE_TYPE_FILE
	case guestapi.KindDir:
		return pb.FileType_FILE_TYPE_DIRECTORY
	default:
		return pb.FileType_FILE_TYPE_UNSPECIFIED
	}
}

func (f *filesystem) Stat(
	ctx context.Context,
	req *connect.Request[pb.StatRequest],
) (*connect.Response[pb.StatResponse], error) {
	p, err := parsePath(req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := targetOf(ctx).Guest.Stat(ctx, p, requestUser(req.Header()))
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&pb.StatResponse{Entry: entryInfo(info)}), nil
}

func (f *filesystem) MakeDir(
	ctx context.Context,
	req *connect.Request[pb.MakeDirRequest],
) (*connect.Response[pb.MakeDirResponse], error) {
	p, err := parsePath(req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := targetOf(ctx).Guest.MakeDir(ctx, p, requestUser(req.Header()))
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&pb.MakeDirResponse{Entry: entryInfo(info)}), nil
}

func (f *filesystem) Move(
	ctx context.Context,
	req *connect.Request[pb.MoveRequest],
) (*connect.Response[pb.MoveResponse], error) {
	from, err := parsePath(req.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	to, err := parsePath(req.Msg.GetDestination())
	if err != nil {
		return nil, err
	}
	info, err := targetOf(ctx).Guest.Move(ctx, from, to, requestUser(req.Header()))
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&pb.MoveResponse{Entry: entryInfo(info)}), nil
}

// maxDepth bounds the depth of a listing; the guest bounds the number of entries.
const maxDepth = 64

func (f *filesystem) ListDir(
	ctx context.Context,
	req *connect.Request[pb.ListDirRequest],
) (*connect.Response[pb.ListDirResponse], error) {
	p, err := parsePath(req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	depth := min(max(req.Msg.GetDepth(), 1), maxDepth)
	list, err := targetOf(ctx).Guest.List(ctx, p, requestUser(req.Header()), int(depth))
	if err != nil {
		return nil, rpcError(err)
	}
	out := &pb.ListDirResponse{}
	memory := budget.FromContext(ctx)
	for _, i := range list {
		if err := memory.Take(2 * i.Bytes()); err != nil { // the entry, and its part of the response
			return nil, budgetError(err)
		}
		out.Entries = append(out.Entries, entryInfo(i))
	}
	return connect.NewResponse(out), nil
}

func (f *filesystem) Remove(
	ctx context.Context,
	req *connect.Request[pb.RemoveRequest],
) (*connect.Response[pb.RemoveResponse], error) {
	p, err := parsePath(req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	err = targetOf(ctx).Guest.Remove(ctx, p, requestUser(req.Header()), true)
	if errors.Is(err, guestapi.ErrNotFound) {
		err = nil // clients expect a removal of nothing to succeed
	}
	return connect.NewResponse(&pb.RemoveResponse{}), rpcError(err)
}

// openWatch opens a watcher on a directory.
func openWatch(ctx context.Context, dir, user string, recursive, entries bool) (*watch, error) {
	p, err := parsePath(dir)
	if err != nil {
		return nil, err
	}
	t := targetOf(ctx)
	info, err := t.Guest.Stat(ctx, p, user)
	if err != nil {
		return nil, rpcError(err)
	}
	w, err := t.Guest.Watch(ctx, p, user, recursive)
	if err != nil {
		return nil, rpcError(err)
	}
	return &watch{target: t, from: w, dir: info.Path, user: user, entries: entries}, nil
}

type watch struct {
	target  Target
	from    guestapi.Watcher
	dir     string // absolute
	user    string
	entries bool
}

// event translates an event. Lost events become a write to the directory itself, the one event that makes a client
// list it again.
func (w *watch) event(ctx context.Context, e guestapi.FileEvent) *pb.FilesystemEvent {
	out := &pb.FilesystemEvent{Name: e.Path}
	switch e.Op {
	case guestapi.OpCreate:
		out.Type = pb.EventType_EVENT_TYPE_CREATE
	case guestapi.OpRemove:
		out.Type = pb.EventType_EVENT_TYPE_REMOVE
	case guestapi.OpRename:
		out.Type = pb.EventType_EVENT_TYPE_RENAME
	case guestapi.OpChmod:
		out.Type = pb.EventType_EVENT_TYPE_CHMOD
	default:
		out.Type = pb.EventType_EVENT_TYPE_WRITE
	}
	if w.entries && e.Op != guestapi.OpRemove {
		if info, err := w.target.Guest.Stat(ctx, path.Join(w.dir, e.Path), w.user); err == nil {
			out.Entry = entryInfo(info) // a file that was removed meanwhile has no entry
		}
	}
	return out
}

// errPing is the cause of a wait for events that ended because it is time for a keep-alive.
var errPing = errors.New("time for a keep-alive")

func (f *filesystem) WatchDir(
	ctx context.Context,
	req *connect.Request[pb.WatchDirRequest],
	out *connect.ServerStream[pb.WatchDirResponse],
) error {
	w, err := openWatch(
		ctx,
		req.Msg.GetPath(),
		requestUser(req.Header()),
		req.Msg.GetRecursive(),
		req.Msg.GetIncludeEntry(),
	)
	if err != nil {
		return err
	}
	defer w.from.Close()
	start := &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}}
	if err := out.Send(start); err != nil {
		return err
	}
	every := pingEvery(req.Header())
	for {
		wait, cancel := context.WithTimeoutCause(ctx, every, errPing)
		e, err := w.from.Next(wait)
		quiet := err != nil && context.Cause(wait) == errPing
		cancel()
		msg := &pb.WatchDirResponse{}
		switch {
		case quiet:
			msg.Event = &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}
		case err != nil:
			return streamError(err)
		default:
			msg.Event = &pb.WatchDirResponse_Filesystem{Filesystem: w.event(ctx, e)}
		}
		if err := out.Send(msg); err != nil {
			return err
		}
	}
}
