package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/api"
)

// The templates whose first operations are measured.
const (
	cellTemplate   = "code-interpreter"
	shotTemplate   = "browser"
	cellContext    = "default" // the code context that runs in the template
	shotPage       = "file:///usr/local/lib/pandastack/page.html"
	shotTimes      = 5   // target: how many times faster a first screenshot is than a cold start
	coldStartLimit = 300 // seconds
)

// baked returns an error unless a template is baked: its bake would be measured with the first sandbox.
func (r *run) baked(ctx context.Context, template string) error {
	t, err := r.cl.Templates.Get(ctx, template)
	if err == nil && !t.Baked {
		err = fmt.Errorf("%s is not baked; run 'pandastack template bake %[1]s'", template)
	}
	return err
}

// firstCell measures the time from the create of a sandbox to the result of its first code cell.
func (r *run) firstCell(ctx context.Context) error {
	if err := r.baked(ctx, cellTemplate); err != nil {
		return err
	}
	warm := r.series(
		"first_cell",
		"create of a code interpreter to the result of its first cell, 1+1",
		&Target{P50: 250},
	)
	again := r.series("next_cell", "the next cell in the same context", nil)
	once := r.series("once_cell", "1+1 in a context of its own, request to result", &Target{P50: 60})
	pandas := r.series("once_pandas", "import pandas in a context of its own, request to result", &Target{P50: 300})
	frame := r.series("first_frame", "a first cell that builds a pandas data frame, request to result", nil)
	for i := range r.times(30) + 1 {
		began := time.Now()
		sb, err := r.make(ctx, api.CreateRequest{Template: cellTemplate})
		if err == nil {
			err = r.cell(ctx, sb.ID, "1+1", "2")
		}
		if i > 0 { // the first one is not measured: caches are cold
			r.add(warm, time.Since(began), err)
		}
		if err != nil {
			continue
		}
		began = time.Now()
		err = r.cell(ctx, sb.ID, "2+2", "4")
		r.add(again, time.Since(began), err)
		began = time.Now()
		err = r.cell(ctx, sb.ID, "import pandas\nint(pandas.DataFrame({'a': [1, 2]}).a.sum())", "3")
		r.add(frame, time.Since(began), err)
		for _, c := range []struct {
			series     *Series
			code, want string
		}{{once, "1+1", "2"}, {pandas, "import pandas\nint(pandas.Series([1, 2]).sum())", "3"}} {
			began = time.Now()
			res, err := r.cl.Sandboxes.RunOnce(ctx, sb.ID, api.ReplOnce{ReplCell: api.ReplCell{Code: c.code}})
			r.add(c.series, time.Since(began), checkCell(res, err, c.code, c.want))
		}
		if err := r.remove(ctx, sb.ID); err != nil {
			return err
		}
	}
	return nil
}

// cell runs code in the template's context and checks its value.
func (r *run) cell(ctx context.Context, id api.SandboxID, code, want string) error {
	res, err := r.cl.Sandboxes.RunCell(ctx, id, cellContext, api.ReplCell{Code: code})
	return checkCell(res, err, code, want)
}

// checkCell returns an error unless a cell had the wanted value.
func checkCell(res api.ReplResult, err error, code, want string) error {
	if err != nil {
		return err
	}
	if len(res.Results) != 1 || res.Results[0]["text/plain"] != want {
		return fmt.Errorf("cell %q returned %v %s, want %s", code, res.Results, res.Error, want)
	}
	return nil
}

// firstScreenshot measures a screenshot by the browser that runs in the template, and then, for comparison, one by a
// Chromium that has to start in the same guest.
func (r *run) firstScreenshot(ctx context.Context) error {
	if err := r.baked(ctx, shotTemplate); err != nil {
		return err
	}
	first := r.series("first_screenshot", "create of a browser to its first screenshot of a local page", nil)
	next := r.series("next_screenshot", "the next screenshot of the same browser", nil)
	cold := r.series("cold_screenshot", "the same page by a Chromium that is started in the same guest", nil)
	times := r.series(
		"screenshot_times",
		"how many times faster the first screenshot is than that cold start",
		&Target{AtLeast: shotTimes},
	)
	times.Unit = "times"
	const shot = "screenshot " + shotPage + " /tmp/shot.png"
	const start = "chromium --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,720 " +
		"--user-data-dir=$(mktemp -d) --screenshot=/tmp/cold.png " + shotPage + " 2>/dev/null && test -s /tmp/cold.png"
	for i := range r.times(5) + 1 {
		began := time.Now()
		sb, err := r.make(ctx, api.CreateRequest{Template: shotTemplate})
		if err == nil {
			err = r.long(ctx, sb.ID, shot)
		}
		took := time.Since(began)
		if i > 0 { // the first one is not measured: caches are cold
			r.add(first, took, err)
		}
		if err != nil {
			continue
		}
		began = time.Now()
		err = r.long(ctx, sb.ID, shot)
		r.add(next, time.Since(began), err)
		if i > 0 {
			began = time.Now()
			err = r.long(ctx, sb.ID, start)
			r.add(cold, time.Since(began), err)
			r.compare(times, time.Since(began), took, err)
		}
		if err := r.remove(ctx, sb.ID); err != nil {
			return err
		}
	}
	return nil
}

// compare records the ratio of two durations, or a failure.
func (r *run) compare(s *Series, long, short time.Duration, err error) {
	if err != nil {
		r.add(s, 0, err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Values = append(s.Values, float64(long)/float64(short))
	s.close()
}

// long runs a shell command that may take minutes and must exit with code 0.
func (r *run) long(ctx context.Context, id api.SandboxID, line string) error {
	res, err := r.cl.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: line, TimeoutSeconds: coldStartLimit})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("%q exited with code %d: %s%s", line, res.ExitCode, res.Stdout, res.Stderr)
	}
	return err
}
