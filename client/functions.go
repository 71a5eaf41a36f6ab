package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"

	"github.com/pandastack/pandastack/api"
)

// Functions are the calls on functions. A function is named by its id or its name.
type Functions struct{ c *Client }

func functionPath(fn string, below ...string) string {
	return apiPath(append([]string{"functions", fn}, below...)...)
}

func (f *Functions) function(ctx context.Context, rq call) (api.Function, error) {
	var out api.Function
	err := f.c.do(ctx, rq, &out)
	return out, err
}

// Create creates a function. With code it has a version.
func (f *Functions) Create(ctx context.Context, req api.CreateFunctionRequest) (api.Function, error) {
	return f.function(ctx, post(apiPath("functions"), req))
}

// List returns all functions, newest first.
func (f *Functions) List(ctx context.Context) ([]api.Function, error) {
	var out []api.Function
	err := f.c.do(ctx, get(apiPath("functions")), &out)
	return out, err
}

// Get returns one function.
func (f *Functions) Get(ctx context.Context, fn string) (api.Function, error) {
	return f.function(ctx, get(functionPath(fn)))
}

// Update changes a function; absent fields stay.
func (f *Functions) Update(ctx context.Context, fn string, req api.UpdateFunctionRequest) (api.Function, error) {
	return f.function(ctx, call{method: http.MethodPatch, path: functionPath(fn), in: req})
}

// Delete deletes a function with its versions and runs.
func (f *Functions) Delete(ctx context.Context, fn string) error {
	rq := del(functionPath(fn))
	rq.idempotent = false // a second response would be not_found
	return f.c.do(ctx, rq, nil)
}

// Deploy makes a version of a bundle: a file, or a tar archive, which may be compressed with gzip.
//
// It returns when the version is ready. entrypoint is the function's if it is empty.
func (f *Functions) Deploy(ctx context.Context, fn string, bundle io.Reader, entrypoint string) (api.Function, error) {
	r, w := io.Pipe()
	form := multipart.NewWriter(w)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(writeBundle(form, bundle, entrypoint))
	}()
	defer func() {
		r.CloseWithError(io.ErrClosedPipe)
		<-done
	}()
	return f.function(ctx, call{
		method: http.MethodPost, path: functionPath(fn, "deploy"), body: r, size: -1,
		header: map[string]string{"Content-Type": form.FormDataContentType()},
	})
}

func writeBundle(form *multipart.Writer, bundle io.Reader, entrypoint string) error {
	if entrypoint != "" {
		if err := form.WriteField("entrypoint", entrypoint); err != nil {
			return err
		}
	}
	part, err := form.CreateFormFile("bundle", "code.tar.gz")
	if err != nil {
		return err
	}
	if _, err := io.Copy(part, bundle); err != nil {
		return err
	}
	return form.Close()
}

// Code returns the code of a version, compressed with gzip: an archive, or one file. The newest version if it is 0.
func (f *Functions) Code(ctx context.Context, fn string, version int64) (io.ReadCloser, error) {
	path := functionPath(fn, "code")
	if version != 0 {
		path = functionPath(fn, "versions", itoa(version), "code")
	}
	res, err := f.c.send(ctx, get(path))
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Versions returns the versions of a function, newest first.
func (f *Functions) Versions(ctx context.Context, fn string) ([]api.FunctionVersion, error) {
	var out []api.FunctionVersion
	err := f.c.do(ctx, get(functionPath(fn, "versions")), &out)
	return out, err
}

// DeleteVersion deletes a version that takes no invocations.
func (f *Functions) DeleteVersion(ctx context.Context, fn string, version int64) error {
	return f.c.do(ctx, del(functionPath(fn, "versions", itoa(version))), nil)
}

// BuildLog returns the log of the build of a version. The caller closes it.
func (f *Functions) BuildLog(ctx context.Context, fn string, version int64) (io.ReadCloser, error) {
	res, err := f.c.send(ctx, get(functionPath(fn, "versions", itoa(version), "logs")))
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Rollback goes back to a version, or to the ready one before the present one if version is 0.
func (f *Functions) Rollback(ctx context.Context, fn string, version int64) (api.Function, error) {
	return f.function(ctx, post(functionPath(fn, "rollback"), api.FunctionRollbackRequest{Version: version}))
}

// Aliases returns the aliases of a function by name.
func (f *Functions) Aliases(ctx context.Context, fn string) ([]api.FunctionAlias, error) {
	var out []api.FunctionAlias
	err := f.c.do(ctx, get(functionPath(fn, "aliases")), &out)
	return out, err
}

// SetAlias sets an alias to a version, or to two with weights.
func (f *Functions) SetAlias(
	ctx context.Context,
	fn, name string,
	req api.SetAliasRequest,
) (api.FunctionAlias, error) {
	var out api.FunctionAlias
	rq := call{method: http.MethodPut, path: functionPath(fn, "aliases", name), in: req, idempotent: true}
	err := f.c.do(ctx, rq, &out)
	return out, err
}

// DeleteAlias deletes an alias.
func (f *Functions) DeleteAlias(ctx context.Context, fn, name string) error {
	return f.c.do(ctx, del(functionPath(fn, "aliases", name)), nil)
}

// Invoke invokes a function. It returns when the run has ended or, with req.Async, is queued.
//
// A handler that fails is no error: see the status of the run.
func (f *Functions) Invoke(ctx context.Context, fn string, req api.InvokeRequest) (api.FunctionRun, error) {
	return f.run(ctx, post(functionPath(fn, "invoke"), req))
}

func (f *Functions) run(ctx context.Context, rq call) (api.FunctionRun, error) {
	var out api.FunctionRun
	err := f.c.do(ctx, rq, &out)
	return out, err
}

// Run returns one run with its output.
func (f *Functions) Run(ctx context.Context, fn string, id api.InvocationID) (api.FunctionRun, error) {
	return f.run(ctx, get(functionPath(fn, "runs", string(id))))
}

// Cancel cancels an asynchronous run that has not ended.
func (f *Functions) Cancel(ctx context.Context, fn string, id api.InvocationID) (api.FunctionRun, error) {
	return f.run(ctx, post(functionPath(fn, "runs", string(id), "cancel"), nil))
}

// RecordRun records a run that the caller has made itself.
func (f *Functions) RecordRun(ctx context.Context, fn string, req api.RecordRunRequest) (api.FunctionRun, error) {
	return f.run(ctx, post(functionPath(fn, "runs"), req))
}

// Runs returns runs of a function, newest first.
func (f *Functions) Runs(ctx context.Context, fn string, filter api.RunFilter) ([]api.FunctionRun, error) {
	q := url.Values{}
	if filter.Status != "" {
		q.Set("status", string(filter.Status))
	}
	if filter.Version != 0 {
		q.Set("version", itoa(filter.Version))
	}
	if filter.Limit != 0 {
		q.Set("limit", itoa(filter.Limit))
	}
	if filter.Before != "" {
		q.Set("before", string(filter.Before))
	}
	rq := get(functionPath(fn, "runs"))
	rq.query = q
	var out []api.FunctionRun
	err := f.c.do(ctx, rq, &out)
	return out, err
}

// Logs calls yield for the last runs of a function, oldest first.
//
// With follow it continues with the runs that end, until ctx ends.
func (f *Functions) Logs(
	ctx context.Context,
	fn string,
	last int,
	follow bool,
	yield func(api.FunctionRun) error,
) error {
	rq := get(functionPath(fn, "logs"))
	rq.query = url.Values{"limit": {itoa(last)}}
	if follow {
		rq.query.Set("follow", "1")
	}
	return logLines(ctx, f.c, rq, yield)
}

// Map invokes a function for many inputs.
//
// It calls yield for each run that has ended, and once at the end.
func (f *Functions) Map(
	ctx context.Context,
	fn string,
	req api.MapRequest,
	yield func(api.MapProgress) error,
) error {
	res, err := f.c.send(ctx, post(functionPath(fn, "map"), req))
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // nothing more is read
	lines := bufio.NewReader(res.Body)
	for ended := false; ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && ended {
			return nil
		}
		if err != nil {
			return transportError(ctx, err)
		}
		var one api.MapProgress
		if err := json.Unmarshal(bytes.TrimSpace(line), &one); err != nil {
			return api.Wrap(api.Internal, err, "the response is not the expected JSON: "+err.Error())
		}
		if one.Error != nil {
			return one.Error
		}
		ended = one.Run == nil
		if err := yield(one); err != nil {
			return err
		}
	}
}

// Metrics returns figures of the invocations of the last hours.
func (f *Functions) Metrics(ctx context.Context, fn string, hours int) (api.FunctionMetrics, error) {
	rq := get(functionPath(fn, "metrics"))
	rq.query = url.Values{"period": {itoa(hours)}}
	var out api.FunctionMetrics
	err := f.c.do(ctx, rq, &out)
	return out, err
}
