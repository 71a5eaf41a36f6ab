package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
)

// functionMap is the number of inputs of a measured map.
const functionMap = 200

// functionCode returns the same function in a language, and the name of its file.
func functionCode(runtime api.FunctionRuntime) (entrypoint, code string) {
	if runtime == api.RuntimeNode {
		return "index.js", "exports.handler = async (event) => ({ hello: event });\n"
	}
	return "handler.py", "def handler(event, context):\n    return {'hello': event}\n"
}

// functions measures deployments and invocations of functions that do nothing.
func (r *run) functions(ctx context.Context) error {
	for _, c := range []struct {
		runtime api.FunctionRuntime
		mode    api.FunctionMode
		do      func(context.Context, api.Function) error
	}{
		{api.RuntimePython, api.FunctionIsolated, r.isolatedPython},
		{api.RuntimeNode, api.FunctionIsolated, func(ctx context.Context, f api.Function) error {
			return r.invocations(ctx, f, "function_isolated_node", "the same in Node.js", 40,
				&Target{P50: 130, P99: 300})
		}},
		{api.RuntimePython, api.FunctionShared, func(ctx context.Context, f api.Function) error {
			return r.invocations(ctx, f, "function_shared", "invocation in a machine that is kept, Python", 100,
				&Target{P50: 25})
		}},
	} {
		if err := r.withFunction(ctx, c.runtime, c.mode, c.do); err != nil {
			return err
		}
	}
	return nil
}

// withFunction calls do with a function that it deploys before and deletes afterwards.
func (r *run) withFunction(
	ctx context.Context,
	runtime api.FunctionRuntime,
	mode api.FunctionMode,
	do func(context.Context, api.Function) error,
) (err error) {
	entrypoint, code := functionCode(runtime)
	f, err := r.cl.Functions.Create(ctx, api.CreateFunctionRequest{
		Name: "bench-" + strings.ToLower(rand.Text()), Runtime: runtime, Entrypoint: entrypoint, Code: []byte(code),
		Template: r.Template, Settings: api.FunctionSettings{Mode: mode},
	})
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		err = errors.Join(err, r.cl.Functions.Delete(end, string(f.ID)))
	}()
	if !f.IsReady {
		return fmt.Errorf("the function was not built: %s", f.Error)
	}
	return do(ctx, f)
}

// isolatedPython measures what functions in machines of their own do: invocations of all kinds, and deployments.
func (r *run) isolatedPython(ctx context.Context, f api.Function) error {
	err := r.invocations(ctx, f, "function_isolated", "invocation in a machine of its own, to its response, Python",
		40, &Target{P50: 130, P99: 300})
	if err != nil {
		return err
	}
	deploys := r.series("function_deploy", "deployment with unchanged dependencies, until it takes invocations",
		&Target{P50: 3000})
	_, code := functionCode(api.RuntimePython)
	for i := range r.times(6) {
		began := time.Now()
		_, err := r.cl.Functions.Deploy(ctx, string(f.ID), strings.NewReader(fmt.Sprintf("%s# %d\n", code, i)), "")
		r.add(deploys, time.Since(began), err)
	}
	if err := r.mapped(ctx, f); err != nil {
		return err
	}
	accepted := r.series("function_accepted", "asynchronous invocation that begins later, request to its acceptance",
		&Target{P50: 8})
	for range r.times(40) {
		began := time.Now()
		_, err := r.cl.Functions.Invoke(ctx, string(f.ID), api.InvokeRequest{Async: true, DelaySeconds: 3600})
		r.add(accepted, time.Since(began), err)
	}
	return r.packages(ctx, f)
}

// functionPackages are the dependencies of the function whose deployments packages measures.
const functionPackages = "blinker==1.9.0\nclick==8.1.8\nitsdangerous==2.2.0\njinja2==3.1.6\nmarkupsafe==3.0.2\n"

// packages measures deployments of code with five dependencies, the first of which installs them. Where that fails, the
// registry of packages cannot be reached from the machines of the node, and the series is skipped.
func (r *run) packages(ctx context.Context, f api.Function) error {
	const name = "function_deploy_packages"
	_, code := functionCode(api.RuntimePython)
	deploy := func(number int) error {
		bundle, err := functionBundle("requirements.txt", functionPackages, f.Entrypoint,
			fmt.Sprintf("import click, jinja2\n%s# package %d\n", code, number))
		if err != nil {
			return err
		}
		_, err = r.cl.Functions.Deploy(ctx, string(f.ID), bytes.NewReader(bundle), "")
		return err
	}
	began := time.Now()
	if err := deploy(0); err != nil {
		r.report.Skipped[name] = "five packages could not be installed: " + err.Error()
		return ctx.Err()
	}
	installed := time.Since(began)
	s := r.series(name, "deployment with five dependencies that did not change, until it takes invocations",
		&Target{P50: 3000})
	for i := range r.times(6) {
		began := time.Now()
		err := deploy(i + 1)
		r.add(s, time.Since(began), err)
	}
	if s.Failed == 0 {
		s.Note = fmt.Sprintf("the first deployment, which installed them, took %v",
			installed.Round(100*time.Millisecond))
	}
	return nil
}

// functionBundle returns a tar archive of pairs of names and texts.
func functionBundle(files ...string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, files[i+1]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// invocations measures invocations one after the other.
func (r *run) invocations(ctx context.Context, f api.Function, name, what string, times int, target *Target) error {
	s := r.series(name, what, target)
	for i := range r.times(times) + 3 {
		began := time.Now()
		run, err := r.cl.Functions.Invoke(ctx, string(f.ID), api.InvokeRequest{Input: json.RawMessage(`1`)})
		took := time.Since(began)
		if err == nil && run.Status != api.RunSuccess {
			err = fmt.Errorf("the run has the status %s", run.Status)
		}
		if i >= 3 { // the first ones are not measured: caches are cold
			r.add(s, took, err)
		}
	}
	return nil
}

// mapped measures how many inputs of a map are done in a second.
func (r *run) mapped(ctx context.Context, f api.Function) error {
	s := r.series("function_map", "inputs a second of a map of 200, each in a machine of its own",
		&Target{AtLeast: 12})
	s.Unit = "1/s"
	inputs := make([]json.RawMessage, r.times(functionMap))
	for i := range inputs {
		inputs[i] = json.RawMessage(`1`)
	}
	began := time.Now()
	var last api.MapProgress
	err := r.cl.Functions.Map(ctx, string(f.ID), api.MapRequest{Inputs: inputs}, func(p api.MapProgress) error {
		last = p
		return nil
	})
	switch {
	case err != nil:
		return err
	case last.Done != len(inputs) || last.Errors > 0:
		s.Failed++
		s.Note = fmt.Sprintf("%d of %d runs failed", last.Errors, len(inputs))
	default:
		s.Values = append(s.Values, float64(len(inputs))/time.Since(began).Seconds())
	}
	s.close()
	return nil
}
