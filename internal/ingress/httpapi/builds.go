package httpapi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/buildform"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/services"
)

func (rq *request) builds() (services.Builds, error) {
	if rq.s.deps.Builds == nil {
		return nil, api.Errorf(api.Unsupported, "this server builds no templates")
	}
	return rq.s.deps.Builds, nil
}

// onBuild calls a method for the build in the path.
func onBuild[T any](rq *request, do func(services.Builds, api.BuildID) (T, error)) (T, error) {
	var none T
	b, err := rq.builds()
	if err != nil {
		return none, err
	}
	id, err := api.ParseBuildID(rq.r.PathValue("build"))
	if err != nil {
		return none, err
	}
	return do(b, id)
}

// uploadSink collects the files of a form in one upload.
type uploadSink struct {
	rq     *request
	builds services.Builds
	upload *build.Upload
	whole  bool
}

func (s *uploadSink) begin(files bool) (err error) {
	if s.upload != nil && (!files || s.whole) {
		return api.Errorf(api.Invalid, "the form holds an archive and other files: send one or the other")
	}
	if s.upload == nil {
		s.whole = !files
		s.upload, err = s.builds.NewUpload(s.rq.r.Context(), s.rq.p, files)
	}
	return err
}

// AddFile implements buildform.Sink.
func (s *uploadSink) AddFile(name string, r io.Reader) error {
	if err := s.begin(true); err != nil {
		return err
	}
	return s.upload.AddFile(name, r)
}

// Archive implements buildform.Sink.
func (s *uploadSink) Archive(r io.Reader) error {
	if err := s.begin(false); err != nil {
		return err
	}
	_, err := io.Copy(s.upload, r)
	return err
}

func startBuild(rq *request) error {
	b, err := rq.builds()
	if err != nil {
		return err
	}
	files := &uploadSink{rq: rq, builds: b}
	defer func() {
		if files.upload != nil {
			_ = files.upload.Close() // the next start removes what cannot be removed now
		}
	}()
	req, err := buildform.Read(rq.r, files)
	if err != nil {
		return err
	}
	started, err := b.Start(
		rq.r.Context(),
		rq.p,
		build.Spec{BuildRequest: req.BuildRequest, Rootfs: req.Rootfs},
		files.upload,
	)
	if err != nil {
		return err
	}
	status := http.StatusAccepted
	if started.Reused {
		status = http.StatusOK
	}
	writeJSON(rq.w, status, started)
	return nil
}

// bakeImage makes a template of a sandbox's disk and waits for it as long as the caller does.
func bakeImage(rq *request) error {
	var req api.BakeImageRequest
	if err := rq.decode(&req); err != nil {
		return err
	}
	box, err := getSandbox(rq)
	if err != nil {
		return err
	}
	if _, err := rq.org(cmp.Or(req.Workspace, rq.p.Workspace)); err != nil {
		return err
	}
	b, err := rq.builds()
	if err != nil {
		return err
	}
	got, err := b.Start(
		rq.r.Context(),
		rq.p,
		build.Spec{BuildRequest: api.BuildRequest{Name: req.ImageName, FromSandbox: box.ID}},
		nil,
	)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(rq.r.Context(), waitLimit(rq.r.Header.Get("Prefer")), errWaitExpired)
	defer cancel()
	err = b.Logs(ctx, rq.p, got.ID, 0, true, func(api.BuildLine) error { return nil }) // until it has ended
	if err != nil && context.Cause(ctx) == nil {
		return err
	}
	if got, err = b.Get(rq.r.Context(), rq.p, got.ID); err != nil {
		return err
	}
	status, out := http.StatusAccepted, api.BakedImage{Image: got.Name, Status: "baking", BuildID: got.ID}
	switch got.Status {
	case api.BuildFailed:
		return api.Errorf(got.Code, "%s", got.Error).With("build", got.ID)
	case api.BuildDone:
		status, out.Status = http.StatusCreated, "baked"
	}
	writeJSON(rq.w, status, out)
	return nil
}

func listBuilds(rq *request) ([]api.Build, error) {
	b, err := rq.builds()
	if err != nil {
		return nil, err
	}
	return b.List(rq.r.Context(), rq.p, rq.r.URL.Query().Get("template"))
}

func getBuild(rq *request) (api.Build, error) {
	return onBuild(rq, func(b services.Builds, id api.BuildID) (api.Build, error) {
		return b.Get(rq.r.Context(), rq.p, id)
	})
}

func cancelBuild(rq *request) (api.Build, error) {
	return onBuild(rq, func(b services.Builds, id api.BuildID) (api.Build, error) {
		return b.Cancel(rq.r.Context(), rq.p, id)
	})
}

func retryBuild(rq *request, req api.RetryRequest) (api.Build, error) {
	return onBuild(rq, func(b services.Builds, id api.BuildID) (api.Build, error) {
		return b.Retry(rq.r.Context(), rq.p, id, req.Registry)
	})
}

func buildLogs(rq *request) error {
	after, err := rq.intParam("after", 0, 1<<40, 0)
	if err != nil {
		return err
	}
	if last := rq.r.Header.Get("Last-Event-ID"); last != "" {
		if after, err = strconv.ParseInt(last, 10, 64); err != nil || after < 0 {
			return api.Errorf(
				api.Invalid,
				"Last-Event-ID: %q is not an id of this stream: leave it out to start over",
				truncate(last),
			)
		}
	}
	follow := rq.boolParam("follow")
	_, err = onBuild(rq, func(b services.Builds, id api.BuildID) (struct{}, error) {
		// Access to the build is checked before the stream begins, so that a refusal is an HTTP error.
		if _, err := b.Get(rq.r.Context(), rq.p, id); err != nil {
			return struct{}{}, err
		}
		if !follow && !strings.Contains(rq.r.Header.Get("Accept"), "text/event-stream") {
			rq.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			return struct{}{}, b.Logs(rq.r.Context(), rq.p, id, after, false, func(l api.BuildLine) error {
				_, err := io.WriteString(rq.w, l.Line+"\n")
				return err
			})
		}
		out := execstream.NewSSE(rq.w)
		defer out.Close()
		gone := errors.New("client has gone")
		err := b.Logs(rq.r.Context(), rq.p, id, after, follow, func(l api.BuildLine) error {
			if out.ID(strconv.FormatInt(l.Seq, 10), "line", l) != nil {
				return gone
			}
			return nil
		})
		switch {
		case err == nil:
			_ = out.Raw("done", "end") // the client may have disconnected
		case !errors.Is(err, gone) && rq.r.Context().Err() == nil:
			_ = out.Event("error", api.AsError(err)) // the client may have disconnected
		}
		return struct{}{}, nil
	})
	return err
}
