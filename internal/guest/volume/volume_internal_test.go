package volume

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

func TestCheck(t *testing.T) {
	if findProgram("e2fsck") == "" {
		t.Skip("probe e2fsck: it is not installed")
	}
	long := strings.Repeat("x", 2*guestapi.MaxCheckLog) + "end"
	for name, c := range map[string]struct {
		codes []int // of the calls
		want  guestapi.CheckResult
		calls int
	}{
		"clean":          {[]int{0}, guestapi.CheckClean, 1},
		"repaired":       {[]int{1}, guestapi.CheckRepaired, 1},
		"repaired_reset": {[]int{2}, guestapi.CheckRepaired, 1},
		"with_questions": {[]int{4, 1}, guestapi.CheckRepaired, 2},
		"damaged":        {[]int{4, 4 | 1}, guestapi.CheckDamaged, 2},
		"killed":         {[]int{128 + 9, 128 + 9}, guestapi.CheckDamaged, 2},
		"no_device":      {[]int{8, 8}, guestapi.CheckDamaged, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var calls [][]string
			m := New(func(argv []string) (string, int, error) {
				calls = append(calls, argv)
				return long, c.codes[len(calls)-1], nil
			})
			r, err := m.check("/dev/x")
			if err != nil || r.Check != c.want || len(calls) != c.calls {
				t.Errorf("check = %v, %v after %q; want %v after %d calls", r.Check, err, calls, c.want, c.calls)
			}
			if len(r.Log) > guestapi.MaxCheckLog || !strings.HasSuffix(r.Log, "end") {
				t.Errorf("log has %d bytes, want the end of what was printed", len(r.Log))
			}
		})
	}
	broken := errors.New("no memory")
	m := New(func([]string) (string, int, error) { return "", 0, broken })
	if _, err := m.check("/dev/x"); !errors.Is(err, broken) {
		t.Errorf("check that cannot run: got %v, want its error", err)
	}
}

func TestInvalidRequests(t *testing.T) {
	m := New(nil)
	for _, v := range []guestapi.VolumeMount{
		{Disk: 0, Dir: "/x"}, {Disk: 26, Dir: "/x"}, {Disk: -1, Dir: "/x"}, {Disk: 1}, {Disk: 1, Dir: "x"},
		{Disk: 1, Dir: "/"}, {Disk: 1, Dir: "/x/../y"}, {Disk: 1, Dir: "/x/"},
	} {
		_, err := m.Do(guestapi.VolumeRequest{Action: guestapi.VolumeMountAt, Volume: v})
		if !errors.Is(err, guestapi.ErrInvalid) {
			t.Errorf("mount %+v: got %v, want ErrInvalid", v, err)
		}
	}
	for action := range guestapi.VolumeAction(8) {
		if action == guestapi.VolumeMountAt {
			continue
		}
		_, err := m.Do(guestapi.VolumeRequest{Action: action, Volume: guestapi.VolumeMount{Disk: 1}})
		if !errors.Is(err, guestapi.ErrNotFound) {
			t.Errorf("action %d without a volume: got %v, want ErrNotFound", action, err)
		}
	}
}

// TestUsers finds a process by its directory.
func TestUsers(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "users-")
	if err != nil {
		t.Skipf("probe /dev/shm: %v", err)
	}
	defer os.RemoveAll(dir)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	proc := t.TempDir()
	link := func(target string, at ...string) {
		t.Helper()
		path := filepath.Join(append([]string{proc}, at...)...)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)); err != nil {
			t.Fatal(err)
		}
	}
	link(dir, "1", "cwd") // never the first process
	link(dir, "20", "cwd")
	link("/", "21", "cwd")
	link(dir, "22", "fd", "3")
	link(dir, "23", "map_files", "1-2")
	link(dir, "24", "root")
	link(dir, "self", "cwd")
	if got, want := users(proc, st.Dev), []int{20, 22, 23, 24}; !slices.Equal(got, want) {
		t.Errorf("users = %v, want %v", got, want)
	}
	child := exec.Command("/bin/cat") // waits for its input
	child.Dir = dir
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(in.Close(), child.Wait()) }()
	if got := users("/proc", st.Dev); !slices.Contains(got, child.Process.Pid) {
		t.Errorf("users = %v, want process %d among them", got, child.Process.Pid)
	}
}
