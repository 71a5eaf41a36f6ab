package machine_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/host/machine"
)

// A boot that fails says what the guest printed last, or why its monitor ended, and leaves nothing behind.
func TestFailedBootTellsConsole(t *testing.T) {
	const lastWords = "pandastack-guest: initramfs is damaged"
	noise := strings.Repeat("[    3.9]  do_exit+0x9a3/0xaf0\r\n", 2000)
	for name, c := range map[string]struct {
		set  func(h *fakeDriver)
		want []string
		lost bool
	}{
		"timeout": {
			set: func(h *fakeDriver) { h.unresponsive, h.prints = true, lastWords+"\r\n"+noise+"\x1b]0;title\a\n" },
			want: []string{
				"did not confirm its identity", "the guest's console ends with: " + lastWords, `\x1b]0;title\a`,
			},
		},
		"channel_breaks": {
			set:  func(h *fakeDriver) { h.breaks, h.prints = true, lastWords+"\n" },
			want: []string{"guest channel was lost", "the guest's console ends with: " + lastWords}, lost: true,
		},
		"monitor_ends": {
			set: func(h *fakeDriver) {
				h.crashes = errors.New("guest rebooted or crashed; its console ends with: " + lastWords)
			},
			want: []string{"the monitor ended: guest rebooted or crashed; its console ends with: " + lastWords},
		},
		"nothing_printed": {
			set:  func(h *fakeDriver) { h.unresponsive = true },
			want: []string{"did not confirm its identity"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			c.set(w.host)
			w.patient = time.Minute
			if w.host.unresponsive {
				w.patient = 200 * time.Millisecond
			}
			w.restart(nil)
			_, err := w.mgr.Boot(t.Context(), machine.Boot{
				ID: "b", Disk: filepath.Join(w.dir, string(base), "disk.img"), VCPUs: 1, MemoryMiB: 64,
			})
			if err == nil {
				t.Fatal("got no error of a boot whose guest fails, want one")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error %q, want %q in it", err, want)
				}
			}
			if got := errors.Is(err, guestapi.ErrLost); got != c.lost {
				t.Errorf("got guestapi.ErrLost %v, want %v: %v", got, c.lost, err)
			}
			if got := strings.Count(err.Error(), "console ends with"); got > 1 {
				t.Errorf("got the console %d times, want it once: %v", got, err)
			}
			if len(err.Error()) > 2000 || strings.ContainsAny(err.Error(), "\x1b\a\r\n") {
				t.Errorf("got error %q of %d bytes, want a short one without control characters", err, len(err.Error()))
			}
			w.checkEmpty()
		})
	}
}
