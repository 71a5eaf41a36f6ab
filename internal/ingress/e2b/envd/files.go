package envd

import (
	"compress/gzip"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/byterange"
)

// Sign returns the signature of a file URL, in the form of npm e2b 2.51.0.
//
// operation is "read" or "write", user is "" for the default user, and expiration is in Unix seconds, nil for a URL
// that does not expire.
func Sign(file, operation, user, token string, expiration *int64) string {
	text := strings.Join([]string{file, operation, user, token}, ":")
	if expiration != nil {
		text += ":" + strconv.FormatInt(*expiration, 10)
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// authorizeFile returns the user of a request for a file, "" for the sandbox's default user, or an error unless the
// request has the access token or a signature for exactly this request.
//
// A signature covers the user in the query. It says nothing about the user in the Authorization header, who counts only
// beside the token.
func authorizeFile(r *http.Request, token, operation string, now time.Time) (user string, err error) {
	q := r.URL.Query()
	given := q.Get("signature")
	if given == "" {
		if !showsToken(r, token) {
			return "", errors.New("missing signature or access token")
		}
		if name := q.Get("username"); name != "" {
			return name, nil
		}
		return requestUser(r.Header), nil
	}
	var until *int64
	if text := q.Get("signature_expiration"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return "", fmt.Errorf("signature_expiration: %.20q is not a number of seconds", text)
		}
		until = &n
	}
	want := Sign(q.Get("path"), operation, q.Get("username"), token, until)
	if token == "" || subtle.ConstantTimeCompare([]byte(given), []byte(want)) != 1 {
		return "", errors.New("invalid signature")
	}
	if until != nil && now.Unix() > *until {
		return "", errors.New("signature is already expired")
	}
	return q.Get("username"), nil
}

// IsSigned reports whether r is a request for a file that carries a valid signature by token.
func IsSigned(r *http.Request, token string) bool {
	operation := map[string]string{
		http.MethodGet: "read", http.MethodHead: "read", http.MethodPost: "write",
	}[r.Method]
	if operation == "" || r.URL.Path != filesPath || !r.URL.Query().Has("signature") {
		return false
	}
	_, err := authorizeFile(r, token, operation, time.Now())
	return err == nil
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	file := r.URL.Query().Get("path")
	if file == "" {
		fail(w, http.StatusBadRequest, "path: is empty; give the path of a file")
		return
	}
	t := targetOf(r.Context())
	user, err := authorizeFile(r, t.AccessToken, "read", time.Now())
	if err != nil {
		fail(w, http.StatusUnauthorized, err.Error())
		return
	}
	want, ranged := byterange.Parse(r.Header.Get("Range"))
	length := int64(-1)
	if ranged {
		length = 0 // the size comes first
	}
	info, body, err := t.Guest.Read(r.Context(), homeRelative(file), user, 0, length)
	if err != nil {
		failWith(w, err)
		return
	}
	defer func() { body.Close() }()
	h, status, offset := w.Header(), http.StatusOK, int64(0)
	if length = info.Size; ranged {
		if info.Size == 0 || r.Header.Get("If-Range") != "" { // there are no parts, or it is not known whether they fit
			offset, length = 0, info.Size
		} else if offset, length = want.Resolve(info.Size); length == 0 {
			h.Set("Content-Range", fmt.Sprintf("bytes */%d", info.Size))
			fail(w, http.StatusRequestedRangeNotSatisfiable, "Range: begins at or after the end of the file")
			return
		} else {
			status = http.StatusPartialContent
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, offset+length-1, info.Size))
		}
		// It was only read, and is opened again at the right place.
		_ = body.Close()
		if _, body, err = t.Guest.Read(r.Context(), homeRelative(file), user, offset, length); err != nil {
			body = io.NopCloser(nil)
			h.Del("Content-Range")
			failWith(w, err)
			return
		}
	}
	h.Set("Content-Type", contentType(info.Name))
	h.Set("Content-Length", strconv.FormatInt(length, 10))
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": info.Name}))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Last-Modified", info.Modified.UTC().Format(http.TimeFormat))
	w.WriteHeader(status)
	// If the guest fails in the middle, less than the announced length is sent and the server cuts the connection:
	// after the status was sent, that is the only way to report it.
	_, _ = io.CopyN(w, body, length)
}

func contentType(name string) string {
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}

// uploadedFile is the response about one uploaded file.
type uploadedFile struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// maxParts bounds the files of one upload.
const maxParts = 10_000

func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	target := r.URL.Query().Get("path")
	user, err := authorizeFile(r, targetOf(r.Context()).AccessToken, "write", time.Now())
	if err != nil {
		fail(w, http.StatusUnauthorized, err.Error())
		return
	}
	body := io.Reader(r.Body)
	size := r.ContentLength
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzip, err := gzip.NewReader(r.Body)
		if err != nil {
			fail(w, http.StatusBadRequest, "body: is not gzip, as its Content-Encoding says: "+err.Error())
			return
		}
		body, size = unzip, -1
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "multipart/form-data":
		s.uploadParts(w, r, multipart.NewReader(body, params["boundary"]), target, user)
	case target == "":
		fail(w, http.StatusBadRequest, "path: is empty; give the path of the file, or send multipart/form-data")
	default:
		opt := guestapi.WriteOptions{User: user, Size: size}
		if one, ok := s.writeFile(w, r, target, opt, body); ok {
			reply(w, http.StatusOK, []uploadedFile{one})
		}
	}
}

func (s *Server) uploadParts(
	w http.ResponseWriter,
	r *http.Request,
	parts *multipart.Reader,
	target, user string,
) {
	done := []uploadedFile{}
	for n := 0; ; n++ {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || n == maxParts {
			fail(
				w,
				http.StatusBadRequest,
				fmt.Sprintf("body: part %d is not multipart/form-data, or there are more than %d parts", n+1, maxParts),
			)
			return
		}
		name := partName(part)
		if part.FormName() != "file" || name == "" && target == "" {
			continue
		}
		if target != "" {
			if len(done) > 0 {
				fail(w, http.StatusBadRequest, "path: one path was given for more than one file")
				return
			}
			name = target
		}
		one, ok := s.writeFile(w, r, name, guestapi.WriteOptions{User: user, Size: -1}, part)
		if !ok {
			return
		}
		done = append(done, one)
	}
	if len(done) == 0 {
		fail(w, http.StatusBadRequest, "body: has no part named file")
		return
	}
	reply(w, http.StatusOK, done)
}

// partName returns the whole file name of a part. The protocol puts the target path there, of which the standard
// library returns only the last element.
func partName(p *multipart.Part) string {
	_, params, err := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return params["filename"]
}

// writeFile writes one file, with the metadata in the request's headers. If that fails, it responds to the request and
// returns false.
func (s *Server) writeFile(
	w http.ResponseWriter,
	r *http.Request,
	file string,
	opt guestapi.WriteOptions,
	body io.Reader,
) (uploadedFile, bool) {
	metadata, err := parseMetadata(r.Header)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return uploadedFile{}, false
	}
	opt.Metadata = metadata
	from := &errorRecorder{Reader: body}
	info, err := targetOf(r.Context()).Guest.Write(r.Context(), homeRelative(file), opt, from)
	if from.err != nil {
		fail(w, http.StatusBadRequest, "body: was cut off or does not match its headers: "+from.err.Error())
		return uploadedFile{}, false
	}
	if err != nil {
		failWith(w, err)
		return uploadedFile{}, false
	}
	return uploadedFile{Path: info.Path, Name: info.Name, Type: "file", Metadata: info.Metadata}, true
}

// errorRecorder records why a body could not be read to its end.
type errorRecorder struct {
	io.Reader
	err error
}

func (s *errorRecorder) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// metadataHeader begins the names of headers with the metadata of files; the lower-case rest is the key. All files of
// an upload get the same metadata; an upload without any removes what a file had.
const metadataHeader = "X-Metadata-"

// Bounds of metadata, in bytes.
const (
	maxMetadataKey = 246
	maxMetadata    = 4096 // keys and values, with the prefix that the guest puts before each key
	metadataPrefix = len("user.e2b.")
)

// parseMetadata returns the metadata of an upload, which must be visible ASCII within the bounds.
func parseMetadata(h http.Header) (map[string]string, error) {
	var metadata map[string]string
	total := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metadataHeader)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		value := values[len(values)-1]
		if key == "" || len(key) > maxMetadataKey ||
			strings.ContainsFunc(key+value, func(c rune) bool { return c < ' ' || c > '~' }) {
			return nil, fmt.Errorf(
				"header %.60s: a key of metadata has 1 to %d bytes, and both key and value are visible ASCII",
				name,
				maxMetadataKey,
			)
		}
		if total += metadataPrefix + len(key) + len(value); total > maxMetadata {
			return nil, fmt.Errorf("the metadata has more than %d bytes", maxMetadata)
		}
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[key] = value
	}
	return metadata, nil
}

// maxSources bounds the files that one request concatenates.
const maxSources = 1000

func (s *Server) compose(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		User        string   `json:"username"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxMessage)).Decode(&req); err != nil {
		fail(w, http.StatusBadRequest, "body: is not JSON: "+err.Error())
		return
	}
	if len(req.Sources) == 0 || len(req.Sources) > maxSources || req.Destination == "" {
		fail(
			w,
			http.StatusBadRequest,
			fmt.Sprintf("source_paths and destination: give 1 to %d sources and a destination", maxSources),
		)
		return
	}
	for _, src := range req.Sources {
		if path.Clean(homeRelative(src)) == path.Clean(homeRelative(req.Destination)) {
			fail(w, http.StatusBadRequest, fmt.Sprintf("source_paths: %.200q is the destination", src))
			return
		}
	}
	ctx, g := r.Context(), targetOf(r.Context()).Guest
	joined := &concatReader{open: func(i int) (io.ReadCloser, error) {
		if i == len(req.Sources) {
			return nil, io.EOF
		}
		_, body, err := g.Read(ctx, homeRelative(req.Sources[i]), req.User, 0, -1)
		return body, err
	}}
	defer joined.Close()
	opt := guestapi.WriteOptions{User: req.User, Size: -1, Atomic: true}
	info, err := g.Write(ctx, homeRelative(req.Destination), opt, joined)
	if err != nil {
		failWith(w, err)
		return
	}
	for _, src := range req.Sources {
		if err := g.Remove(ctx, homeRelative(src), req.User, false); err != nil {
			failWith(w, fmt.Errorf("%s was written, but a source could not be removed: %w", info.Path, err))
			return
		}
	}
	reply(w, http.StatusOK, uploadedFile{Path: info.Path, Name: info.Name, Type: "file"})
}

// concatReader reads files one after the other and opens each when it is needed.
type concatReader struct {
	open func(i int) (io.ReadCloser, error)
	next int
	cur  io.ReadCloser
}

func (s *concatReader) Read(p []byte) (int, error) {
	for {
		if s.cur == nil {
			cur, err := s.open(s.next)
			if err != nil {
				return 0, err
			}
			s.cur = cur
			s.next++
		}
		n, err := s.cur.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		err = s.cur.Close()
		s.cur = nil
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (s *concatReader) Close() error {
	if s.cur == nil {
		return nil
	}
	return s.cur.Close()
}
