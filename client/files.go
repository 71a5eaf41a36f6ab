package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/pandastack/pandastack/api"
)

// Files are the calls on files of a sandbox.
//
// Paths are absolute, or relative to the home of the sandbox's user.
type Files struct{ c *Client }

// Content is an open file of a sandbox. The caller closes it.
type Content struct {
	io.ReadCloser
	Size int64 // bytes that follow; -1 if the server does not know
}

// Read opens a file of any size.
func (f *Files) Read(ctx context.Context, id api.SandboxID, name string) (*Content, error) {
	return f.read(ctx, id, name, "")
}

// ReadRange opens length bytes of a file from offset. A negative length means the rest.
func (f *Files) ReadRange(ctx context.Context, id api.SandboxID, name string, offset, length int64) (*Content, error) {
	span := fmt.Sprintf("bytes=%d-", offset)
	if length >= 0 {
		span += itoa(offset + length - 1)
	}
	return f.read(ctx, id, name, span)
}

func (f *Files) read(ctx context.Context, id api.SandboxID, name, span string) (*Content, error) {
	rq := get(sandboxPath(id, "fs"))
	rq.query = url.Values{"path": {name}}
	rq.header = map[string]string{"Accept": "application/octet-stream"}
	if span != "" {
		rq.header["Range"] = span
	}
	res, err := f.c.send(ctx, rq)
	if err != nil {
		return nil, err
	}
	return &Content{res.Body, res.ContentLength}, nil
}

// WriteOptions are options of a file to write. The zero value is right for most.
type WriteOptions struct {
	User string // owner; "": the sandbox's default
	Mode uint32 // permissions; 0: 0644, or those of the existing file
	// InPlace empties an existing file and writes it, so that its hard links and programs that have it open see the new
	// content, also while it is incomplete. Otherwise a new file takes its place.
	InPlace bool
}

// Write writes a stream of any size to a path and creates missing parents.
//
// The file is written whole or not at all, unless the options say otherwise.
// size is the number of bytes, -1 if it is not known. r is read once, so the request is never retried.
func (f *Files) Write(
	ctx context.Context,
	id api.SandboxID,
	name string,
	r io.Reader,
	size int64,
	opt WriteOptions,
) (api.FileWritten, error) {
	q := url.Values{"path": {name}}
	setNonEmpty(q, "user", opt.User)
	if opt.Mode != 0 {
		q.Set("mode", fmt.Sprintf("%04o", opt.Mode))
	}
	if opt.InPlace {
		q.Set("atomic", "false")
	}
	var out api.FileWritten
	if size == 0 {
		r = http.NoBody
	}
	err := f.c.do(ctx, call{method: http.MethodPut, path: sandboxPath(id, "fs"), query: q, body: r, size: size}, &out)
	return out, err
}

// Stat describes a file without following a last symbolic link. It returns not_found if there is none.
func (f *Files) Stat(ctx context.Context, id api.SandboxID, name string) (api.FileEntry, error) {
	rq := get(sandboxPath(id, "fs", "stat"))
	rq.query = url.Values{"path": {name}}
	var out api.FileEntry
	err := f.c.do(ctx, rq, &out)
	return out, err
}

// Exists reports whether a path exists.
func (f *Files) Exists(ctx context.Context, id api.SandboxID, name string) (bool, error) {
	_, err := f.Stat(ctx, id, name)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.NotFound {
		// The sandbox, not the path, may be what does not exist.
		_, err := f.c.Sandboxes.Get(ctx, id)
		return false, err
	}
	return err == nil, err
}

// List returns the entries of a directory and of directories below it.
//
// depth says how deep; 1 is the directory alone.
func (f *Files) List(ctx context.Context, id api.SandboxID, name string, depth int) ([]api.FileEntry, error) {
	rq := get(sandboxPath(id, "fs", "dir"))
	rq.query = url.Values{"path": {name}}
	if depth > 1 {
		rq.query.Set("depth", itoa(depth))
	}
	var out api.DirListing
	err := f.c.do(ctx, rq, &out)
	return out.Entries, err
}

// Remove deletes a file or an empty directory, or with recursive a directory and everything below it.
func (f *Files) Remove(ctx context.Context, id api.SandboxID, name string, recursive bool) error {
	rq := del(sandboxPath(id, "fs"))
	rq.idempotent = false // a second response would be not_found
	rq.query = url.Values{"path": {name}}
	if recursive {
		rq.query.Set("recursive", "1")
	}
	return f.c.do(ctx, rq, nil)
}

// MakeDir makes a directory with its parents. It returns a conflict if the directory exists.
func (f *Files) MakeDir(ctx context.Context, id api.SandboxID, name string) (api.FileEntry, error) {
	var out api.FileEntry
	err := f.c.do(ctx, post(sandboxPath(id, "fs", "mkdir"), api.MakeDirRequest{Path: name}), &out)
	return out, err
}

// Move renames a file or directory.
func (f *Files) Move(ctx context.Context, id api.SandboxID, from, to string) (api.FileEntry, error) {
	var out api.FileEntry
	err := f.c.do(ctx, post(sandboxPath(id, "fs", "move"), api.MoveRequest{From: from, To: to}), &out)
	return out, err
}
