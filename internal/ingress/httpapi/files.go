package httpapi

import (
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/byterange"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/fileentry"
)

// pathAndUser returns the path and user of the query.
func (rq *request) pathAndUser() (path, user string, err error) {
	q := rq.r.URL.Query()
	path, user = q.Get("path"), q.Get("user")
	if err := api.ValidatePath("path", path); err != nil {
		return "", "", err
	}
	return path, user, nil
}

// file returns the guest, and the path and user of the query.
func (rq *request) file() (g guestapi.Guest, path, user string, err error) {
	if path, user, err = rq.pathAndUser(); err != nil {
		return nil, "", "", err
	}
	g, user, err = rq.guestAs(user)
	return g, path, user, err
}

// guestAs returns the guest and the named user, or the sandbox's default user. The files of a volume are root's.
func (rq *request) guestAs(user string) (g guestapi.Guest, _ string, err error) {
	if rq.r.PathValue("volume") != "" {
		s, name, err := rq.volumes()
		if err == nil {
			write := rq.r.Method != http.MethodGet && rq.r.Method != http.MethodHead
			g, rq.release, err = s.Files(rq.r.Context(), rq.p, name, write)
		}
		return g, user, err
	}
	if user != "" {
		g, err := rq.guest()
		return g, user, err
	}
	g, box, err := rq.enter()
	return g, box.User, err
}

func readFile(rq *request) error {
	g, path, user, err := rq.file()
	if err != nil {
		return err
	}
	want, ranged := byterange.Parse(rq.r.Header.Get("Range"))
	if rq.r.Method == http.MethodHead {
		info, err := g.Stat(rq.r.Context(), path, user)
		if err != nil {
			return hosterror.OfGuest(err, path)
		}
		if info.Kind == guestapi.KindDir {
			return isDirectory(path)
		}
		fileHeader(rq.w.Header(), info)
		rq.w.Header().Set("Content-Length", strconv.FormatInt(info.Size, 10))
		rq.w.WriteHeader(http.StatusOK)
		return nil
	}
	offset, length := int64(0), int64(-1)
	if ranged {
		info, err := g.Stat(rq.r.Context(), path, user)
		if err != nil {
			return hosterror.OfGuest(err, path)
		}
		if offset, length, ranged, err = resolve(rq, want, info); err != nil {
			return err
		}
	}
	info, body, err := g.Read(rq.r.Context(), path, user, offset, length)
	if err != nil {
		return hosterror.OfGuest(err, path)
	}
	defer body.Close() //nolint:errcheck // it was only read
	return sendFile(rq, info, body, offset, length, ranged)
}

func isDirectory(path string) error {
	return api.Errorf(api.Invalid, "%s: is a directory: list it with fs/dir", path)
}

// resolve converts a range to offset and length. The size of a symbolic link, and of a file that reports no size, is
// not known: such a file is sent whole.
func resolve(rq *request, want byterange.Range, info guestapi.FileInfo) (offset, length int64, ranged bool, err error) {
	if info.Kind != guestapi.KindFile || info.Size == 0 {
		return 0, -1, false, nil
	}
	if offset, length = want.Resolve(info.Size); length == 0 {
		rq.w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", info.Size))
		return 0, 0, false, api.Errorf(
			api.RangeNotSatisfiable,
			"Range: begins at or after the end of the file, which has %d bytes",
			info.Size,
		)
	}
	return offset, length, true, nil
}

func fileHeader(h http.Header, info guestapi.FileInfo) {
	h.Set("Content-Type", octets)
	h.Set("Accept-Ranges", "bytes")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if !info.Modified.IsZero() {
		h.Set("Last-Modified", info.Modified.UTC().Format(http.TimeFormat))
	}
}

// copyBuffer is how much of a file is sent at once.
const copyBuffer = 256 << 10

// sendFile streams a file. Files that the kernel generates on reading report no size, so the length is sent only if
// there is one.
func sendFile(rq *request, info guestapi.FileInfo, body io.Reader, offset, length int64, ranged bool) error {
	if info.Kind == guestapi.KindDir {
		return isDirectory(info.Path)
	}
	if err := rq.pay(copyBuffer, info.Path); err != nil {
		return err
	}
	fileHeader(rq.w.Header(), info)
	status := http.StatusOK
	size := info.Size
	if ranged {
		status, size = http.StatusPartialContent, length
		rq.w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, offset+length-1, info.Size))
	}
	known := size > 0 && info.Kind == guestapi.KindFile
	if known {
		rq.w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		body = io.LimitReader(body, size) // the file may grow meanwhile
	}
	rq.w.WriteHeader(status)
	n, err := io.CopyBuffer(plainWriter{rq.w}, body, make([]byte, copyBuffer))
	if err == nil && known && n < size {
		err = fmt.Errorf("file ended after %d of %d bytes", n, size)
	}
	if err != nil {
		return fmt.Errorf("send file: %w", err) // net/http closes the connection, so that the client notices
	}
	return nil
}

// plainWriter hides other methods of a writer, so that io.CopyBuffer uses its buffer.
type plainWriter struct{ io.Writer }

func writeFile(rq *request) error {
	g, path, user, err := rq.file()
	if err != nil {
		return err
	}
	opt := guestapi.WriteOptions{User: user, Size: rq.r.ContentLength, Atomic: true}
	switch text := rq.r.URL.Query().Get("atomic"); text {
	case "", "true", "1":
	case "false", "0":
		opt.Atomic = false
	default:
		return api.Errorf(api.Invalid, "atomic: %q is not true or false", truncate(text)).With("field", "atomic")
	}
	if text := rq.r.URL.Query().Get("mode"); text != "" {
		mode, err := strconv.ParseUint(text, 8, 32)
		if err != nil || mode == 0 || mode > 0o7777 {
			return api.Errorf(api.Invalid, "mode: %q is not octal permissions, such as 0644", truncate(text)).
				With("field", "mode")
		}
		opt.Mode = uint32(mode)
	}
	info, err := g.Write(rq.r.Context(), path, opt, rq.r.Body)
	if err != nil {
		return hosterror.OfGuest(err, path)
	}
	writeJSON(rq.w, http.StatusOK, api.FileWritten{Path: info.Path, Bytes: info.Size})
	return nil
}

func removeFile(rq *request) error {
	g, path, user, err := rq.file()
	if err != nil {
		return err
	}
	return hosterror.OfGuest(g.Remove(rq.r.Context(), path, user, rq.boolParam("recursive")), path)
}

func statFile(rq *request) (api.FileEntry, error) {
	g, path, user, err := rq.file()
	if err != nil {
		return api.FileEntry{}, err
	}
	info, err := g.Stat(rq.r.Context(), path, user)
	return fileentry.Of(info), hosterror.OfGuest(err, path)
}

// maxDepth bounds the depth of one listing.
const maxDepth = 64

// entryBytes is more than an entry of a listing takes besides the text that it shares with the guest's.
const entryBytes = 512

func listDir(rq *request) (api.DirListing, error) {
	g, path, user, err := rq.file()
	if err != nil {
		return api.DirListing{}, err
	}
	depth, err := rq.intParam("depth", 1, maxDepth, 1)
	if err != nil {
		return api.DirListing{}, err
	}
	infos, err := g.List(rq.r.Context(), path, user, int(depth))
	if err != nil {
		return api.DirListing{}, hosterror.OfGuest(err, path)
	}
	if err := rq.pay(entryBytes*int64(len(infos)), path); err != nil {
		return api.DirListing{}, err
	}
	out := api.DirListing{Path: path, Entries: make([]api.FileEntry, 0, len(infos))}
	for _, info := range infos {
		out.Entries = append(out.Entries, fileentry.Of(info))
	}
	return out, nil
}

func makeDir(rq *request, req api.MakeDirRequest) (api.FileEntry, error) {
	g, user, err := rq.guestAs(req.User)
	if err != nil {
		return api.FileEntry{}, err
	}
	info, err := g.MakeDir(rq.r.Context(), req.Path, user)
	return fileentry.Of(info), hosterror.OfGuest(err, req.Path)
}

func moveFile(rq *request, req api.MoveRequest) (api.FileEntry, error) {
	g, user, err := rq.guestAs(req.User)
	if err != nil {
		return api.FileEntry{}, err
	}
	info, err := g.Move(rq.r.Context(), req.From, req.To, user)
	return fileentry.Of(info), hosterror.OfGuest(err, req.From)
}
