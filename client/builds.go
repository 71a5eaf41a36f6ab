package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"

	"github.com/pandastack/pandastack/api"
)

// Upload is the tar stream of a build, beside its request. It is read once.
type Upload struct {
	Tar    io.Reader
	Rootfs bool // Tar is a root file system; else the context of a Dockerfile
}

const buildsPath = "/v1/templates/builds"

func buildPath(id api.BuildID) string { return buildsPath + "/" + url.PathEscape(string(id)) }

func templatePath(name string) string { return "/v1/templates/" + url.PathEscape(name) }

// Build queues a build of a template. up may be nil.
//
// A build whose result exists already is not run: it is returned with Reused set.
func (t *Templates) Build(ctx context.Context, req api.BuildRequest, up *Upload) (api.Build, error) {
	var out api.Build
	if up == nil {
		return out, t.c.do(ctx, post("/v1/templates/build", req), &out)
	}
	r, w := io.Pipe()
	form := multipart.NewWriter(w)
	written := make(chan struct{})
	go func() {
		defer close(written)
		w.CloseWithError(errors.Join(writeForm(form, req, up), form.Close()))
	}()
	err := t.c.do(ctx, call{method: http.MethodPost, path: "/v1/templates/build", body: r, size: -1,
		header: map[string]string{"Content-Type": form.FormDataContentType()}}, &out)
	r.CloseWithError(io.ErrClosedPipe)
	<-written
	return out, err
}

// writeForm writes the fields of a build and then its archive: the server wants that order.
func writeForm(form *multipart.Writer, req api.BuildRequest, up *Upload) error {
	if err := writeFields(form, req); err != nil {
		return err
	}
	field, file := "context.tar", "context.pandastack"
	if up.Rootfs {
		field, file = "rootfs", "rootfs.tar"
	}
	part, err := form.CreateFormFile(field, file)
	if err == nil {
		_, err = io.Copy(part, up.Tar)
	}
	return err
}

// writeFields writes a request as form fields. A list becomes one field per entry.
func writeFields(form *multipart.Writer, req api.BuildRequest) error {
	args, auth, limits := req.Args, req.Registry, req.Limits
	req.Args, req.Registry, req.Limits = nil, nil, nil
	data, err := json.Marshal(req)
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	for name, value := range fields {
		list, many := value.([]any)
		if !many {
			list = []any{value}
		}
		for _, v := range list {
			text := fmt.Sprint(v)
			if n, ok := v.(float64); ok {
				text = strconv.FormatFloat(n, 'f', -1, 64)
			}
			if err := form.WriteField(name, text); err != nil {
				return err
			}
		}
	}
	if limits != nil {
		for name, n := range map[string]int{"disk_mib": limits.DiskMiB, "disk_ops": limits.DiskOps,
			"network_in_mbit": limits.NetworkInMbit, "network_out_mbit": limits.NetworkOutMbit,
			"connections": limits.Connections, "new_connections": limits.NewConnections} {
			if err := form.WriteField("limits."+name, strconv.Itoa(n)); err != nil {
				return err
			}
		}
	}
	for name, value := range args {
		if err := form.WriteField("arg", name+"="+value); err != nil {
			return err
		}
	}
	if auth == nil {
		return nil
	}
	return errors.Join(
		form.WriteField("registry_server", auth.Server),
		form.WriteField("registry_username", auth.Username),
		form.WriteField("registry_password", auth.Password),
		form.WriteField("registry_token", auth.Token),
	)
}

// Builds returns builds, newest first, or those of the template with the given name.
func (t *Templates) Builds(ctx context.Context, name string) ([]api.Build, error) {
	rq := get(buildsPath)
	if name != "" {
		rq.query = url.Values{"template": {name}}
	}
	var out []api.Build
	return out, t.c.do(ctx, rq, &out)
}

// GetBuild returns a build.
func (t *Templates) GetBuild(ctx context.Context, id api.BuildID) (api.Build, error) {
	var out api.Build
	return out, t.c.do(ctx, get(buildPath(id)), &out)
}

// CancelBuild cancels a build.
func (t *Templates) CancelBuild(ctx context.Context, id api.BuildID) (api.Build, error) {
	var out api.Build
	return out, t.c.do(ctx, post(buildPath(id)+"/cancel", nil), &out)
}

// RetryBuild retries a build that failed.
func (t *Templates) RetryBuild(ctx context.Context, id api.BuildID, req api.RetryRequest) (api.Build, error) {
	var out api.Build
	return out, t.c.do(ctx, post(buildPath(id)+"/retry", req), &out)
}

// BuildLogs calls yield for the lines of a build's log with numbers above after.
//
// With follow it returns when the build has ended. A connection that is cut is an error; call BuildLogs again with the
// number of the last line.
func (t *Templates) BuildLogs(
	ctx context.Context,
	id api.BuildID,
	after int64,
	follow bool,
	yield func(api.BuildLine) error,
) error {
	rq := get(buildPath(id) + "/logs")
	rq.query = url.Values{"after": {strconv.FormatInt(after, 10)}}
	if follow {
		rq.query.Set("follow", "1")
	}
	ended := false
	err := t.c.events(ctx, rq, func(e event) error {
		if e.name == "done" {
			ended = true
			return nil
		}
		var line api.BuildLine
		if err := e.decode(&line); err != nil {
			return err
		}
		return yield(line)
	})
	if err == nil && !ended {
		err = transportError(ctx, io.ErrUnexpectedEOF)
	}
	return err
}

// Delete deletes a built template.
func (t *Templates) Delete(ctx context.Context, name string) error {
	return t.c.do(ctx, del(templatePath(name)), nil)
}

// Tag sets tags to the version that req.Target refers to.
func (t *Templates) Tag(ctx context.Context, name string, req api.TagRequest) (api.Template, error) {
	var out api.Template
	return out, t.c.do(ctx, post(templatePath(name)+"/tags", req), &out)
}

// Untag removes a tag.
func (t *Templates) Untag(ctx context.Context, name, tag string) error {
	return t.c.do(ctx, del(templatePath(name)+"/tags/"+url.PathEscape(tag)), nil)
}
