package activity

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// recordingGuest remembers as whom and where it was asked last.
type recordingGuest struct {
	guestapi.Guest
	user, dir string
}

var errHeard = errors.New("heard")

func (h *recordingGuest) Start(_ context.Context, s guestapi.ProcessSpec) (guestapi.Process, error) {
	h.user, h.dir = s.User, s.Dir
	return nil, errHeard
}

func (h *recordingGuest) file(user string) (guestapi.FileInfo, error) {
	h.user = user
	return guestapi.FileInfo{}, errHeard
}

func (h *recordingGuest) Stat(_ context.Context, _, user string) (guestapi.FileInfo, error) {
	return h.file(user)
}
func (h *recordingGuest) List(_ context.Context, _, user string, _ int) ([]guestapi.FileInfo, error) {
	_, err := h.file(user)
	return nil, err
}
func (h *recordingGuest) Read(_ context.Context, _, user string, _, _ int64) (guestapi.FileInfo, io.ReadCloser, error) {
	i, err := h.file(user)
	return i, nil, err
}

func (h *recordingGuest) Write(
	_ context.Context,
	_ string,
	o guestapi.WriteOptions,
	_ io.Reader,
) (guestapi.FileInfo, error) {
	return h.file(o.User)
}
func (h *recordingGuest) Move(_ context.Context, _, _, user string) (guestapi.FileInfo, error) {
	return h.file(user)
}
func (h *recordingGuest) Remove(_ context.Context, _, user string, _ bool) error {
	_, err := h.file(user)
	return err
}
func (h *recordingGuest) MakeDir(_ context.Context, _, user string) (guestapi.FileInfo, error) {
	return h.file(user)
}
func (h *recordingGuest) Watch(_ context.Context, _, user string, _ bool) (guestapi.Watcher, error) {
	_, err := h.file(user)
	return nil, err
}

func TestWithDefaults(t *testing.T) {
	ctx, h := t.Context(), &recordingGuest{}
	g := WithDefaults(h, "dev", "/work")
	for _, tt := range []struct{ user, dir, wantUser, wantDir string }{
		{"", "", "dev", "/work"}, {"dev", "", "dev", "/work"}, {"root", "", "root", ""}, {"", "/tmp", "dev", "/tmp"},
	} {
		_, err := g.Start(ctx, guestapi.ProcessSpec{User: tt.user, Dir: tt.dir})
		if !errors.Is(err, errHeard) || h.user != tt.wantUser || h.dir != tt.wantDir {
			t.Errorf("%+v: as %q in %q, %v", tt, h.user, h.dir, err)
		}
	}
	for name, do := range map[string]func(user string) error{
		"stat":   func(u string) error { _, err := g.Stat(ctx, "f", u); return err },
		"list":   func(u string) error { _, err := g.List(ctx, "f", u, 1); return err },
		"read":   func(u string) error { _, _, err := g.Read(ctx, "f", u, 0, -1); return err },
		"move":   func(u string) error { _, err := g.Move(ctx, "f", "g", u); return err },
		"remove": func(u string) error { return g.Remove(ctx, "f", u, false) },
		"mkdir":  func(u string) error { _, err := g.MakeDir(ctx, "f", u); return err },
		"watch":  func(u string) error { _, err := g.Watch(ctx, "f", u, false); return err },
		"write": func(u string) error {
			_, err := g.Write(ctx, "f", guestapi.WriteOptions{User: u}, strings.NewReader(""))
			return err
		},
	} {
		for asked, want := range map[string]string{"": "dev", "root": "root"} {
			if err := do(asked); !errors.Is(err, errHeard) || h.user != want {
				t.Errorf("%s as %q was done as %q, %v", name, asked, h.user, err)
			}
		}
	}
}
