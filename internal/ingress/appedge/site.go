package appedge

import (
	"mime"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/staticfiles"
)

// Site are the static files of a deployment. It implements Files.
type Site struct {
	Set *staticfiles.Set
	// SPA serves /index.html in place of pages that do not exist.
	SPA bool
	// NotFound is the path of the page for files that do not exist; "": 404.html if it is there.
	NotFound string
	// Program says that a program serves what is no file.
	Program bool
}

// ServeFile implements Files.
func (s Site) ServeFile(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		if s.Program {
			return false
		}
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, r, http.StatusMethodNotAllowed, api.Errorf(api.NotAllowed, "This app has pages and no program"))
		return true
	}
	name := path.Clean("/" + r.URL.Path)[1:]
	dir := name == "" || strings.HasSuffix(r.URL.Path, "/")
	if !dir && s.send(w, r, name, http.StatusOK) {
		return true
	}
	if index := path.Join(name, indexPage); s.has(index) {
		if dir {
			return s.send(w, r, index, http.StatusOK)
		}
		w.Header().Set("Location", (&url.URL{Path: "/" + name + "/", RawQuery: r.URL.RawQuery}).String())
		w.WriteHeader(http.StatusPermanentRedirect)
		return true
	}
	if !dir && s.send(w, r, name+".html", http.StatusOK) {
		return true
	}
	if s.Program {
		return false
	}
	if s.SPA && path.Ext(name) == "" && s.send(w, r, indexPage, http.StatusOK) {
		return true
	}
	page := strings.TrimPrefix(path.Clean("/"+s.NotFound), "/")
	if page == "" {
		page = "404.html"
	}
	return s.send(w, r, page, http.StatusNotFound)
}

const indexPage = "index.html"

func (s Site) has(name string) bool {
	_, ok := s.Set.Lookup(name)
	return ok
}

// hashed matches names of files that have a hash of their content, or are in a directory of such files: they never
// change.
var hashed = regexp.MustCompile(`^_next/static/|^_astro/|^_app/immutable/|^_nuxt/|[.-][0-9A-Za-z_-]{8,}\.[a-z0-9.]+$`)

// digit is in most hashes, and in few words.
var digit = regexp.MustCompile(`[.-][0-9A-Za-z_-]*[0-9][0-9A-Za-z_-]*\.[a-z0-9.]+$`)

// isImmutable reports whether a file never changes under its name.
func isImmutable(name string) bool {
	if path.Ext(name) == ".html" {
		return false
	}
	return hashed.MatchString(name) && (strings.HasPrefix(name, "_") || digit.MatchString(name))
}

// send sends a file and reports true, or reports false if there is none.
func (s Site) send(w http.ResponseWriter, r *http.Request, name string, status int) bool {
	e, ok := s.Set.Lookup(name)
	if !ok {
		return false
	}
	h := w.Header()
	h.Set("Content-Type", staticfiles.TypeOf(name))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "public, max-age=0, must-revalidate")
	if isImmutable(name) && status == http.StatusOK {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	encoding := staticfiles.Identity
	if len(e.Parts) > 1 {
		h.Set("Vary", "Accept-Encoding")
		if r.Header.Get("Range") == "" { // ranges are of the content itself
			encoding = choose(r.Header.Get("Accept-Encoding"), e)
		}
	}
	part := e.Parts[encoding]
	content := s.Set.Reader(r.Context(), part)
	defer content.Close() //nolint:errcheck // it was read
	tag := e.Hash
	if encoding != staticfiles.Identity {
		h.Set("Content-Encoding", encoding)
		h.Set("Content-Length", strconv.FormatInt(part.Bytes, 10))
		tag += "-" + encoding
	}
	if status != http.StatusOK {
		h.Set("Cache-Control", "no-cache")
		w = statusWriter{w, status}
		r = r.Clone(r.Context()) // the page for a file that does not exist is sent whole
		for _, name := range []string{"Range", "If-Range", "If-None-Match", "If-Match", "If-Modified-Since"} {
			r.Header.Del(name)
		}
	} else {
		h.Set("Etag", `"`+tag+`"`)
	}
	http.ServeContent(w, r, "", time.Time{}, content)
	return true
}

// choose returns the encoding of a file that a client accepts.
func choose(accept string, e staticfiles.Entry) string {
	best, bestQuality := staticfiles.Identity, 0.0
	for item := range strings.SplitSeq(accept, ",") {
		name, parameters, err := mime.ParseMediaType("x/" + strings.TrimSpace(item))
		if err != nil {
			continue
		}
		quality := 1.0
		if q, ok := parameters["q"]; ok {
			if quality, err = strconv.ParseFloat(q, 64); err != nil {
				continue
			}
		}
		name = strings.TrimPrefix(name, "x/")
		if _, ok := e.Parts[name]; !ok || name == "" {
			continue
		}
		if quality > bestQuality || quality == bestQuality && name == staticfiles.Zstd {
			best, bestQuality = name, quality
		}
	}
	return best
}

// statusWriter sends another status than 200.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w statusWriter) WriteHeader(int) { w.ResponseWriter.WriteHeader(w.status) }
