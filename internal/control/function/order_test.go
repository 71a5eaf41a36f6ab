package function_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// TestRunIsWrittenFirst checks that the caller of a function does not wait for the removal of its machine. In a service
// that has ended, which does nothing in the background, it is removed when the run is written.
func TestRunIsWrittenFirst(t *testing.T) {
	w := newFixture(t)
	fn := w.made()
	w.live(code{Name: "one"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.must(w.Run(ctx))
	defer func() {
		w.must(errors.Join(w.code.Close(), w.db.Close()))
		w.start()
	}()
	destroyed := func(from int) bool {
		return slices.ContainsFunc(w.host.Calls()[from:], func(c string) bool {
			return strings.HasPrefix(c, "destroy")
		})
	}
	for name, call := range map[string]func(){
		"invoke": func() { w.invoke(api.InvokeRequest{Input: input("")}) },
		"serve": func() {
			w.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), fn.ID, "",
				func(_ http.ResponseWriter, _ *http.Request, e *api.Error) { t.Errorf("%v", e) })
		},
	} {
		before, written := len(w.host.Calls()), false
		w.hook(hooks{fault: func(op string, _ bool) error {
			if op == "function run" {
				written = true
				if destroyed(before) {
					t.Errorf("%s: the machine was removed before the run was written", name)
				}
			}
			return nil
		}})
		call()
		if !written || !destroyed(before) {
			t.Errorf("%s: run written %t, machine removed %t", name, written, destroyed(before))
		}
	}
}

// TestCodeOfAnotherProcess removes the code of a version as another process does that has not seen its row: it is kept.
func TestCodeOfAnotherProcess(t *testing.T) {
	w := newFixture(t)
	w.made()
	removed := 0
	w.hook(hooks{fault: func(op string, committed bool) error {
		if op != "function deploy" || committed {
			return nil
		}
		return w.code.List(t.Context(), "", func(i blob.Info) error {
			removed++
			return w.code.Delete(t.Context(), i.Key)
		})
	}})
	w.live(code{Name: "one"})
	if removed != 1 {
		t.Errorf("%d bundles were removed", removed)
	}
}
