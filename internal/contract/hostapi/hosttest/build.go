package hosttest

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// image is an imported root file system.
type image struct {
	hostapi.Image
	files map[string]file
}

// ImportImage implements hostapi.Host: regular files of the stream are kept.
func (h *Host) ImportImage(ctx context.Context, req hostapi.Import, stream io.Reader) (hostapi.Image, error) {
	var made hostapi.Image
	err := h.runOp(ctx, "importimage", string(req.ID), func() error {
		files, err := readTar(stream, "/")
		if err != nil {
			return fmt.Errorf("import image %s: %w: %w", req.ID, hostapi.ErrInvalid, err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, ok := h.images[req.ID]; ok {
			return fmt.Errorf("image %s: %w", req.ID, hostapi.ErrExists)
		}
		made = hostapi.Image{ID: req.ID, SizeMiB: req.SizeMiB, Bytes: 1 << 20, Files: len(files), Created: time.Now()}
		h.images[req.ID] = image{made, files}
		return nil
	})
	return made, err
}

// readTar reads regular files below dir.
func readTar(stream io.Reader, dir string) (map[string]file, error) {
	files := map[string]file{}
	for in := tar.NewReader(stream); ; {
		e, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if e.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(in)
		if err != nil {
			return nil, err
		}
		files[path.Join(dir, e.Name)] = file{data: data, mode: uint32(e.Mode & 0o7777), at: time.Now()}
	}
}

// Images implements hostapi.Host.
func (h *Host) Images(ctx context.Context) ([]hostapi.Image, error) {
	all := []hostapi.Image{}
	err := h.runOp(ctx, "images", "", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, id := range slices.Sorted(maps.Keys(h.images)) {
			all = append(all, h.images[id].Image)
		}
		return nil
	})
	return all, err
}

// DeleteImage implements hostapi.Host.
func (h *Host) DeleteImage(ctx context.Context, id hostapi.ImageID) error {
	return h.runOp(ctx, "deleteimage", string(id), func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, ok := h.images[id]; !ok {
			return fmt.Errorf("image %s: %w", id, hostapi.ErrNotFound)
		}
		delete(h.images, id)
		return nil
	})
}

// Publish implements hostapi.Host: Start, Ready and Warm run once in the small shell.
func (h *Host) Publish(ctx context.Context, req hostapi.Publish) (hostapi.Stream[hostapi.PublishProgress], error) {
	return hostapi.NewStream(ctx, func(ctx context.Context, send func(hostapi.PublishProgress) error) error {
		made, err := h.publish(ctx, req, func(step, line string) {
			_ = send(hostapi.PublishProgress{Step: step, Line: line}) // fails only if ctx has ended
		})
		if err != nil {
			return err
		}
		return send(hostapi.PublishProgress{Template: &made})
	}), nil
}

func (h *Host) publish(
	ctx context.Context,
	req hostapi.Publish,
	log func(step, line string),
) (hostapi.Template, error) {
	var made hostapi.Template
	err := h.runOp(ctx, "publish", string(req.Name), func() error {
		t, in, err := h.publishSource(req)
		if err != nil {
			return err
		}
		log("boot", "booted")
		if err := runBuildCommands(ctx, req, in, log); err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.templates[t.Name], h.publishedState[t.Name] = t, in
		made = t
		return nil
	})
	return made, err
}

// publishSource finds what a template is made from.
func (h *Host) publishSource(req hostapi.Publish) (hostapi.Template, *guestState, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fail := func(what string, err error) (hostapi.Template, *guestState, error) {
		return hostapi.Template{}, nil, fmt.Errorf("publish %s: %s: %w", req.Name, what, err)
	}
	if _, ok := h.templates[req.Name]; ok {
		return fail("name", hostapi.ErrExists)
	}
	in := &guestState{
		user:  cmp.Or(req.User, "root"),
		home:  "/home/user",
		env:   maps.Clone(req.Env),
		files: map[string]file{},
	}
	t := hostapi.Template{
		Name:      req.Name,
		Host:      h.id,
		VCPUs:     req.VCPUs,
		MemoryMiB: req.MemoryMiB,
		DiskMiB:   req.DiskMiB,
		User:      req.User,
		Workdir:   req.Workdir,
		Baked:     true,
		BakedAt:   time.Now(),
		Bytes:     100 << 20,
		Published: true,
		Labels:    maps.Clone(req.Labels),
	}
	switch {
	case req.Image != "":
		from, ok := h.images[req.Image]
		if !ok {
			return fail("image "+string(req.Image), hostapi.ErrNotFound)
		}
		in.files, t.DiskMiB = copyFiles(from.files), max(t.DiskMiB, from.SizeMiB)
	case req.Snapshot != "":
		from, ok := h.snapshots[req.Snapshot]
		if !ok {
			return fail("snapshot "+string(req.Snapshot), hostapi.ErrNotFound)
		}
		in.files, t.Disks = copyFiles(from.files), from.disks
		t.VCPUs, t.MemoryMiB, t.DiskMiB = cmp.Or(
			t.VCPUs,
			from.VCPUs,
		), cmp.Or(
			t.MemoryMiB,
			from.MemoryMiB,
		), max(
			t.DiskMiB,
			from.DiskMiB,
		)
		if req.KeepMemory {
			in.env = maps.Clone(from.env)
		}
	default:
		from, ok := h.templates[req.Template]
		if !ok {
			return fail("template "+string(req.Template), hostapi.ErrNotFound)
		}
		t.Disks = from.Disks
		if c := h.publishedState[req.Template]; c != nil {
			in.files = copyFiles(c.files)
		}
		t.VCPUs, t.MemoryMiB, t.DiskMiB = cmp.Or(
			t.VCPUs,
			from.VCPUs,
		), cmp.Or(
			t.MemoryMiB,
			from.MemoryMiB,
		), max(
			t.DiskMiB,
			from.DiskMiB,
		)
	}
	return t, in, nil
}

// runBuildCommands runs the commands of a template before its capture.
func runBuildCommands(ctx context.Context, req hostapi.Publish, in *guestState, log func(step, line string)) error {
	g := newGuest(in)
	defer g.lose()
	run := func(step, command string) error {
		if command == "" {
			return nil
		}
		log(step, command)
		st, err := guestexec.Stream(ctx, g, guestexec.Command{Spec: guestapi.ProcessSpec{
			Shell: command, User: req.User, Dir: req.Workdir, Timeout: cmp.Or(req.ReadyLimit, time.Minute),
		}}, guestexec.Sink{Output: func(e guestapi.Event) error {
			log(step, strings.TrimRight(string(e.Data), "\n"))
			return nil
		}})
		if err == nil && st.Exit.Code != 0 {
			err = fmt.Errorf("the command exited with status %d", st.Exit.Code)
		}
		if err != nil {
			return &hostapi.PublishError{Step: step, Err: err}
		}
		return nil
	}
	if err := errors.Join(run("start", req.Start), run("ready", req.Ready)); err != nil {
		return err
	}
	for _, w := range req.Warm {
		if err := run("warm", w); err != nil {
			return err
		}
	}
	return nil
}

// DeleteTemplate implements hostapi.Host.
func (h *Host) DeleteTemplate(ctx context.Context, name hostapi.TemplateName) error {
	return h.runOp(ctx, "deletetemplate", string(name), func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		t, ok := h.templates[name]
		switch {
		case !ok:
			return fmt.Errorf("template %s: %w", name, hostapi.ErrNotFound)
		case !t.Published:
			return fmt.Errorf("template %s: %w", name, hostapi.ErrUnsupported)
		}
		delete(h.templates, name)
		delete(h.publishedState, name)
		return nil
	})
}

// unpack is the guest agent's program of that name: "d/" and "f/" entries below -dest.
func (s *shell) unpack(args []string) int {
	dest := ""
	for i, a := range args {
		if a == "-dest" && i+1 < len(args) {
			dest = args[i+1]
		}
	}
	files, err := readTar(s.p.input, "")
	if err != nil {
		s.p.print(guestapi.StreamStderr, "unpack: "+err.Error()+"\n")
		return 1
	}
	s.p.g.mu.Lock()
	defer s.p.g.mu.Unlock()
	for name, f := range files {
		kind, rest, _ := strings.Cut(name, "/")
		to := path.Join(dest, rest)
		if at, there := s.p.g.lookup(path.Clean(dest)); kind == "f" && !strings.HasSuffix(dest, "/") &&
			(!there || !at.dir) {
			to = dest
		}
		s.p.g.files[to] = f
	}
	return 0
}

// pack is the guest agent's program of that name, for paths without wildcards.
func (s *shell) pack(args []string) int {
	s.p.g.mu.Lock()
	defer s.p.g.mu.Unlock()
	var out strings.Builder
	w := tar.NewWriter(&out)
	add := func(name string, f file) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(f.mode),
			Size: int64(len(f.data))}); err != nil {
			return err
		}
		_, err := w.Write(f.data)
		return err
	}
	for _, a := range args {
		found := 0
		for _, name := range slices.Sorted(maps.Keys(s.p.g.files)) {
			rest, below := strings.CutPrefix(name, strings.TrimSuffix(a, "/")+"/")
			f := s.p.g.files[name]
			var err error
			switch {
			case f.dir:
				continue
			case name == a:
				err = add("f/"+path.Base(name), f)
			case below:
				err = add("d/"+rest, f)
			default:
				continue
			}
			if found++; err != nil {
				return 1
			}
		}
		if found == 0 {
			s.p.print(guestapi.StreamStderr, "pack: "+a+": no such file or directory\n")
			return 1
		}
	}
	if err := w.Close(); err != nil {
		return 1
	}
	s.p.print(guestapi.StreamStdout, out.String())
	return 0
}
