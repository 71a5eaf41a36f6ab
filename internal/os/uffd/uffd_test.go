package uffd_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/uffd"
)

func TestParseRegions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		want       []uffd.Region
		wrong      string // part of the error; "": no error
	}{
		{"two", `[{"base_host_virt_addr":140000000000000,"size":3221225472,"offset":0,"page_size":4096,` +
			`"page_size_kib":4096}, {"base_host_virt_addr":140100000002049,"size":1073741824,` +
			`"offset":3221225472,"page_size":4096,"page_size_kib":4096}]`, nil, "not aligned"},
		{"old", `[{"base_host_virt_addr":4096,"size":8192,"offset":0,"page_size_kib":4096}]`,
			[]uffd.Region{{4096, 8192, 0, 4096}}, ""},
		{"huge", `[{"base_host_virt_addr":2097152,"size":2097152,"offset":0,"page_size":2097152,` +
			`"page_size_kib":2097152}]`,
			[]uffd.Region{{2 << 20, 2 << 20, 0, 2 << 20}}, ""},
		{"huge at a small boundary", `[{"base_host_virt_addr":4096,"size":2097152,"offset":0,"page_size":2097152}]`,
			nil, "not aligned"},
		{"unknown page", `[{"base_host_virt_addr":4096,"size":8192,"offset":0,"page_size":8192}]`, nil,
			"page size 8192"},
		{"none", `[]`, nil, "0 memory regions"},
		{"empty", `[{"base_host_virt_addr":4096,"size":0,"offset":0,"page_size":4096}]`, nil, "size 0 or"},
		{"beyond", `[{"base_host_virt_addr":18446744073709547520,"size":4096,"offset":0,"page_size":4096}]`, nil,
			"out of range"},
		{"overlap in the monitor", `[{"base_host_virt_addr":4096,"size":8192,"offset":0,"page_size":4096},` +
			`{"base_host_virt_addr":8192,"size":8192,"offset":8192,"page_size":4096}]`, nil, "overlaps"},
		{"overlap in the image", `[{"base_host_virt_addr":4096,"size":8192,"offset":0,"page_size":4096},` +
			`{"base_host_virt_addr":65536,"size":8192,"offset":4096,"page_size":4096}]`, nil, "overlaps"},
		{"negative", `[{"base_host_virt_addr":-1,"size":8192,"offset":0,"page_size":4096}]`, nil, "memory regions"},
	} {
		got, err := uffd.ParseRegions([]byte(c.text))
		switch {
		case c.wrong == "" && (err != nil || len(got) != len(c.want) || got[0] != c.want[0]):
			t.Errorf("%s: ParseRegions() = %v, %v; want %v, nil", c.name, got, err, c.want)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: ParseRegions() = %v, %v; want an error with %q", c.name, got, err, c.wrong)
		}
	}
}

func FuzzParseRegions(f *testing.F) {
	f.Add([]byte(`[{"base_host_virt_addr":4096,"size":8192,"offset":0,"page_size":4096,"page_size_kib":4096}]`))
	f.Add([]byte(`[{"base_host_virt_addr":2097152,"size":2097152,"offset":0,"page_size":2097152}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		regions, err := uffd.ParseRegions(data)
		if err != nil {
			return
		}
		for i, r := range regions {
			if r.Size == 0 || r.Base+r.Size < r.Base || r.Offset+r.Size < r.Offset ||
				(r.Base|r.Offset|r.Size)%r.PageSize != 0 {
				t.Fatalf("ParseRegions accepted unaligned %+v", r)
			}
			for _, o := range regions[:i] {
				if r.Base < o.Base+o.Size && o.Base < r.Base+r.Size {
					t.Fatalf("ParseRegions accepted %+v, which overlaps %+v", r, o)
				}
			}
		}
	})
}

// pair returns two connected Unix sockets.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr)); err != nil {
		t.Fatal(err)
	}
	if b, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

func TestReceiveRefuses(t *testing.T) {
	t.Parallel()
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	good := []byte(`[{"base_host_virt_addr":4096,"size":8192,"offset":0,"page_size":4096}]`)
	for _, c := range []struct {
		name  string
		data  []byte
		files []int
		wrong string
	}{
		{"another descriptor", good, []int{int(file.Fd())}, "not a userfaultfd"},
		{"two descriptors", good, []int{int(file.Fd()), int(file.Fd())}, "2 descriptors"},
		{"no region", []byte(`[]`), []int{int(file.Fd())}, "0 memory regions"},
		{"an end without a word", nil, nil, "EOF"},
		{"no descriptor", good, nil, "EOF"},
		{"too much", []byte("[" + strings.Repeat(" ", 70<<10)), []int{int(file.Fd())}, "more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ours, theirs := pair(t)
			sent := make(chan error, 1)
			go func() {
				var err error
				if len(c.data) > 0 {
					_, _, err = theirs.WriteMsgUnix(c.data, unix.UnixRights(c.files...), nil)
				}
				sent <- errors.Join(err, theirs.CloseWrite())
			}()
			_, _, err := uffd.Receive(t.Context(), ours)
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("Receive() = %v, want an error with %q", err, c.wrong)
			}
			_ = ours.Close() // ends a sender of too much data
			<-sent
		})
	}
}

func TestReceiveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ours, _ := pair(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(time.Millisecond, func() { cancel(why) })
	if _, _, err := uffd.Receive(ctx, ours); !errors.Is(err, why) {
		t.Errorf("Receive() = %v, want the cause of the context", err)
	}
}
