// Package buildform reads the request of a template build: a multipart form with fields and files, a URL-encoded form,
// or JSON.
//
// It owns the names of the fields as published clients send them. Files are streamed to the caller's Sink in the order
// of the form; the package stores nothing. All functions may be called at once.
package buildform

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/lib/strictjson"
)

// Limits of a form.
const (
	maxField  = 1 << 20 // bytes of a field
	maxFields = 1000
)

// Sink receives the files of a form.
type Sink interface {
	// AddFile receives a file of a context, by its path in the context.
	AddFile(name string, r io.Reader) error
	// Archive receives a whole stream: a root file system, or a context as one tar.
	Archive(r io.Reader) error
}

// Build is the content of a form.
type Build struct {
	api.BuildRequest
	Rootfs bool // the archive is a root file system
}

// Read reads the request of a build. Its errors are *api.Error.
func Read(r *http.Request, files Sink) (Build, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		kind = "application/json"
	}
	var b Build
	switch kind {
	case "multipart/form-data":
		err = readMultipart(r, files, &b)
	case "application/x-www-form-urlencoded":
		err = readURLEncoded(r, &b)
	case "application/json":
		err = readJSON(r, &b)
	default:
		err = api.Errorf(api.Invalid, "Content-Type: %.60q is not a form or JSON", kind)
	}
	if err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok {
			return b, e
		}
		return b, api.Wrap(api.Invalid, err, "the form could not be read: "+err.Error())
	}
	return b, nil
}

// CheckDuplicates returns an error that names the first member that a JSON body has twice.
func CheckDuplicates(data []byte) error {
	path, twice := strictjson.DuplicateKey(data)
	if !twice {
		return nil
	}
	if len(path) > maxPath {
		path = path[:maxPath] + "..."
	}
	return api.Errorf(api.Invalid, "%s: is there twice: send it once", path).With("field", path)
}

// maxPath bounds the path of a member in an error.
const maxPath = 60

func readJSON(r *http.Request, b *Build) error {
	data, err := io.ReadAll(io.LimitReader(r.Body, 4*maxField+1))
	if err != nil {
		return err
	}
	if len(data) > 4*maxField {
		return api.Errorf(api.TooLarge, "the body is larger than %d bytes", 4*maxField)
	}
	if err := CheckDuplicates(data); err != nil {
		return err
	}
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&b.BuildRequest); err != nil {
		return api.Errorf(api.Invalid, "the body is not a build: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

func readURLEncoded(r *http.Request, b *Build) error {
	data, err := io.ReadAll(io.LimitReader(r.Body, 4*maxField+1))
	if err != nil {
		return err
	}
	if len(data) > 4*maxField {
		return api.Errorf(api.TooLarge, "the body is larger than %d bytes", 4*maxField)
	}
	again := &http.Request{
		Method: http.MethodPost,
		Header: r.Header,
		Body:   io.NopCloser(strings.NewReader(string(data))),
	}
	if err := again.ParseForm(); err != nil {
		return err
	}
	for name, values := range again.PostForm {
		for _, v := range values {
			if err := b.setField(name, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func readMultipart(r *http.Request, files Sink, b *Build) error {
	in, err := r.MultipartReader()
	if err != nil {
		return err
	}
	for fields := 0; ; {
		part, err := in.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if part.FileName() == "" {
			if fields++; fields > maxFields {
				return api.Errorf(api.TooLarge, "the form has more than %d fields", maxFields)
			}
			value, err := io.ReadAll(io.LimitReader(part, maxField+1))
			if err != nil {
				return err
			}
			if len(value) > maxField {
				return api.Errorf(api.TooLarge, "%s: larger than %d bytes", part.FormName(), maxField).
					With("field", part.FormName())
			}
			if err := b.setField(part.FormName(), string(value)); err != nil {
				return err
			}
			continue
		}
		if err := b.readFile(part, files); err != nil {
			return err
		}
	}
}

// readFile passes one file to the sink. A root file system and a context as one tar have their own names; any other
// name is a path in the context.
func (b *Build) readFile(part *multipart.Part, files Sink) error {
	switch name := part.FormName(); {
	case name == "rootfs" && b.Dockerfile == "":
		b.Rootfs = true
		return files.Archive(part)
	case name == "context.tar" && strings.HasSuffix(part.FileName(), ".pandastack"):
		return files.Archive(part)
	default:
		return files.AddFile(name, part)
	}
}

// setField sets one field.
func (b *Build) setField(name, value string) error {
	switch name {
	case "name":
		b.Name = value
	case "dockerfile":
		b.Dockerfile = value
	case "image_ref":
		b.ImageRef = value
	case "from_sandbox":
		b.FromSandbox = api.SandboxID(value)
	case "from_snapshot":
		b.FromSnapshot = api.SnapshotID(value)
	case "from_template":
		b.FromTemplate = value
	case "target":
		b.Target = value
	case "start":
		b.Start = value
	case "ready":
		b.Ready = value
	case "warm":
		b.Warm = append(b.Warm, value)
	case "user":
		b.User = value
	case "workdir":
		b.Workdir = value
	case "description":
		b.Description = value
	case "tags":
		for tag := range strings.SplitSeq(value, ",") {
			b.Tags = append(b.Tags, strings.TrimSpace(tag))
		}
	case "arg":
		key, text, _ := strings.Cut(value, "=")
		if b.Args == nil {
			b.Args = map[string]string{}
		}
		b.Args[key] = text
	case "registry_server", "registry_username", "registry_password", "registry_token":
		b.setRegistry(name, value)
	case "kernel": // guests boot the kernel of the node
	default:
		return b.setNumber(name, value)
	}
	return nil
}

func (b *Build) setRegistry(name, value string) {
	if b.Registry == nil {
		b.Registry = &api.RegistryAuth{}
	}
	switch name {
	case "registry_server":
		b.Registry.Server = value
	case "registry_username":
		b.Registry.Username = value
	case "registry_password":
		b.Registry.Password = value
	default:
		b.Registry.Token = value
	}
}

// setNumber sets a field that is a number or a boolean.
func (b *Build) setNumber(name, value string) error {
	if field, ok := strings.CutPrefix(name, "limits."); ok {
		return b.setLimit(field, name, value)
	}
	numbers := map[string]*int{
		"size_mb":      &b.SizeMB,
		"cpu":          &b.CPU,
		"memory_mb":    &b.MemoryMB,
		"step_seconds": &b.StepSeconds,
	}
	flags := map[string]*bool{"replace": &b.Replace, "global": &b.Global, "no_cache": &b.NoCache, "memory": &b.Memory}
	switch {
	case numbers[name] != nil && value != "":
		n, err := strconv.Atoi(value)
		if err != nil {
			return api.Errorf(api.Invalid, "%s: %.40q is not a whole number", name, value).With("field", name)
		}
		*numbers[name] = n
	case flags[name] != nil:
		*flags[name] = value == "true" || value == "1"
	case numbers[name] == nil:
		return api.Errorf(api.Invalid, "%.80s: no such field of a build", name).With("field", name)
	}
	return nil
}

// setLimit sets a limit of the template's sandboxes.
func (b *Build) setLimit(field, name, value string) error {
	if b.Limits == nil {
		b.Limits = &api.Limits{}
	}
	l := b.Limits
	at := map[string]*int{
		"disk_mib":         &l.DiskMiB,
		"disk_ops":         &l.DiskOps,
		"network_in_mbit":  &l.NetworkInMbit,
		"network_out_mbit": &l.NetworkOutMbit,
		"connections":      &l.Connections,
		"new_connections":  &l.NewConnections,
	}[field]
	if at == nil {
		return api.Errorf(api.Invalid, "%.80s: no such field of a build", name).With("field", name)
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		return api.Errorf(api.Invalid, "%s: %.40q is not a whole number", name, value).With("field", name)
	}
	*at = n
	return nil
}
