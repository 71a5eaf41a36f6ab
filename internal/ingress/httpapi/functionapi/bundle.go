package functionapi

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

// maxField bounds a field of a form in bytes.
const maxField = 4 << 10

// memoryCost is how much memory a byte of a bundle takes while it is read.
const memoryCost = 2

func (a API) deploy(c *Call) (out api.Function, err error) {
	s, fn, err := a.on(c)
	if err != nil {
		return out, err
	}
	wait := c.R.URL.Query().Get("wait")
	if wait != "" && wait != "0" && wait != "1" {
		return out, api.Errorf(api.Invalid, "wait: %.60q is neither 0 nor 1", wait).With("field", "wait")
	}
	// The function is looked up before a large body is read.
	if _, err := s.Get(c.Context(), c.Principal, fn); err != nil {
		return out, err
	}
	bundle, entrypoint, err := readForm(c)
	if err != nil {
		return out, err
	}
	out, err = s.Deploy(c.Context(), c.Principal, fn, bytes.NewReader(bundle), entrypoint, wait != "0")
	return shown(c, out), err
}

// readForm reads the form of a deployment: the file bundle and, before or after it, the field entrypoint.
func readForm(c *Call) (bundle []byte, entrypoint string, err error) {
	kind, _, _ := mime.ParseMediaType(c.R.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		return nil, "", api.Errorf(api.Invalid, "the body is no form: send multipart/form-data with the file bundle").
			With("field", "bundle")
	}
	const limit = api.MaxFunctionCode + 64<<10
	c.R.Body = http.MaxBytesReader(c.W, c.R.Body, limit)
	form, err := c.R.MultipartReader()
	if err != nil {
		return nil, "", api.Errorf(api.Invalid, "the form could not be read: %w", err)
	}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, "", formError(err)
		}
		switch part.FormName() {
		case "bundle":
			if bundle != nil {
				return nil, "", api.Errorf(api.Invalid, "bundle: is there twice: send it once").With("field", "bundle")
			}
			bundle, err = io.ReadAll(c.Memory.Reader(part, memoryCost))
		case "entrypoint":
			entrypoint, err = field(part)
		default:
			err = api.Errorf(api.Invalid, "%.60s: no such field: a form has bundle and entrypoint", part.FormName()).
				With("field", "bundle")
		}
		if err != nil {
			return nil, "", formError(err)
		}
	}
	switch {
	case len(bundle) == 0:
		return nil, "", api.Errorf(api.Invalid, "bundle: is missing or empty: send a tar.gz with the code").
			With("field", "bundle")
	case len(bundle) > api.MaxFunctionCode:
		return nil, "", tooLarge()
	}
	return bundle, entrypoint, api.ValidateEntrypoint(entrypoint)
}

func field(part *multipart.Part) (string, error) {
	text, err := io.ReadAll(io.LimitReader(part, maxField+1))
	if len(text) > maxField {
		err = api.Errorf(api.TooLarge, "%s: has more than %d bytes", part.FormName(), maxField).
			With("field", part.FormName())
	}
	return string(text), err
}

func tooLarge() error {
	return api.Errorf(api.TooLarge, "bundle: has more than %d bytes: leave out what the build can install",
		api.MaxFunctionCode).With("field", "bundle")
}

// formError returns the error for the client of a form that could not be read.
func formError(err error) error {
	if refused := execstream.UnpaidError(err, "bundle"); refused != nil {
		return refused
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return tooLarge()
	}
	return api.Wrap(api.Invalid, err, "the form broke off: "+err.Error())
}

func (a API) code(c *Call) error {
	s, fn, err := a.on(c)
	if err != nil {
		return err
	}
	return sendCode(c, s, fn, 0)
}

func (a API) versionCode(c *Call) error {
	s, fn, n, err := a.onVersion(c)
	if err != nil {
		return err
	}
	return sendCode(c, s, fn, n)
}

// maxSingle bounds the file, and the bundle, that is sent without its archive, in bytes.
const maxSingle = 4 << 20

// sendCode sends the code of a version, compressed with gzip: the text of the file if there is one file alone, which is
// what clients write to disk, and otherwise an archive.
func sendCode(c *Call, s Functions, fn string, version int64) error {
	bundle, size, err := s.Code(c.Context(), c.Principal, fn, version)
	if err != nil {
		return err
	}
	defer bundle.Close() //nolint:errcheck // it was only read
	h := c.W.Header()
	h.Set("Content-Type", octets)
	h.Set("Cache-Control", "no-store")
	head, err := io.ReadAll(io.LimitReader(c.Memory.Reader(bundle, memoryCost), maxSingle+1))
	if err != nil {
		return formError(err)
	}
	text, isGzip, single := singleFile(head)
	switch {
	case len(head) <= maxSingle && single:
		return compress(c.W, bytes.NewReader(text))
	case !isGzip:
		return compress(c.W, io.MultiReader(bytes.NewReader(head), bundle))
	}
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	_, err = io.Copy(c.W, io.MultiReader(bytes.NewReader(head), bundle))
	return err
}

func compress(w io.Writer, r io.Reader) error {
	z := gzip.NewWriter(w)
	if _, err := io.Copy(z, r); err != nil {
		return err
	}
	return z.Close()
}

// singleFile returns the only file of an archive, which may be compressed, and whether the bundle is compressed. single
// is false if there are several files, none, one that is larger than maxSingle, or no archive.
func singleFile(bundle []byte) (text []byte, isGzip, single bool) {
	isGzip = bytes.HasPrefix(bundle, []byte{0x1f, 0x8b})
	plain := io.Reader(bytes.NewReader(bundle))
	if isGzip {
		z, err := gzip.NewReader(plain)
		if err != nil {
			return nil, true, false
		}
		plain = z
	}
	in := tar.NewReader(io.LimitReader(plain, 2*maxSingle))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return text, isGzip, single
		}
		if err != nil {
			return nil, isGzip, false
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if h.Typeflag != tar.TypeReg || single || h.Size > maxSingle {
			return nil, isGzip, false
		}
		if text, err = io.ReadAll(in); err != nil {
			return nil, isGzip, false
		}
		single = true
	}
}
