package buildform_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/buildform"
)

// sink counts the files that it receives.
type sink struct {
	files, bytes int
	archives     int
}

func (s *sink) AddFile(_ string, r io.Reader) error {
	n, err := io.Copy(io.Discard, r)
	s.files, s.bytes = s.files+1, s.bytes+int(n)
	return err
}

func (s *sink) Archive(r io.Reader) error {
	s.archives++
	_, err := io.Copy(io.Discard, r)
	return err
}

// TestLimits checks that limits are fields of their own, and that an unknown one is refused by name.
func TestLimits(t *testing.T) {
	read := func(body string) (buildform.Build, error) {
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return buildform.Read(r, &sink{})
	}
	b, err := read("name=x&limits.disk_mib=1&limits.disk_ops=2&limits.network_in_mbit=3&limits.network_out_mbit=4" +
		"&limits.connections=5&limits.new_connections=6")
	want := api.Limits{
		DiskMiB: 1, DiskOps: 2, NetworkInMbit: 3, NetworkOutMbit: 4, Connections: 5, NewConnections: 6,
	}
	if err != nil || b.Limits == nil || *b.Limits != want {
		t.Errorf("got limits %+v, %v", b.Limits, err)
	}
	for _, body := range []string{"limits.disk=1", "limits.=1", "limits.disk_mib=many"} {
		if _, err := read(body); api.CodeOf(err) != api.Invalid {
			t.Errorf("Read(%s) = %v, want a refusal that names the field", body, err)
		}
	}
}

// TestFieldsBehindManyFiles checks that the files of a large context do not count as fields, which are limited.
func TestFieldsBehindManyFiles(t *testing.T) {
	read := func(files, fields int) (buildform.Build, *sink, error) {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		for i := range files {
			f, err := w.CreateFormFile(fmt.Sprintf("dir/%d", i), "x")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = f.Write([]byte("ab"))
		}
		for range fields {
			if err := w.WriteField("name", "built"); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("POST", "/", &body)
		r.Header.Set("Content-Type", w.FormDataContentType())
		s := &sink{}
		b, err := buildform.Read(r, s)
		return b, s, err
	}
	b, s, err := read(3000, 2)
	if err != nil || b.Name != "built" || s.files != 3000 || s.bytes != 6000 {
		t.Errorf("Read = %+v, %v with files %+v; want all of them", b, err, s)
	}
	if _, _, err := read(0, 1002); api.CodeOf(err) != api.TooLarge {
		t.Errorf("Read of too many fields = %v, want an error", err)
	}
}

// FuzzRead checks that every refusal is an error of the API, and that the sink receives no more than the form had.
func FuzzRead(f *testing.F) {
	f.Add(
		"multipart/form-data; boundary=b",
		"--b\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nx\r\n"+
			"--b\r\nContent-Disposition: form-data; name=\"a/b\"; filename=\"b\"\r\n\r\ncontent\r\n--b--\r\n",
	)
	f.Add(
		"multipart/form-data; boundary=b",
		"--b\r\nContent-Disposition: form-data; name=\"rootfs\"; filename=\"r\"\r\n\r\n\x00\r\n--b--",
	)
	f.Add("application/x-www-form-urlencoded", "name=a&size_mb=12&arg=K=v&replace=true")
	f.Add("application/json", `{"name":"a","size_mb":1}`)
	f.Add("", "{}")
	f.Fuzz(func(t *testing.T, kind, body string) {
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		s := &sink{}
		b, err := buildform.Read(r, s)
		if s.bytes > len(body) {
			t.Errorf("the sink received %d bytes of a form of %d", s.bytes, len(body))
		}
		if err == nil {
			_ = b.Validate() // it may be wrong, and must not panic
			return
		}
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Message == "" || e.Code == api.Internal {
			t.Errorf("Read(%q) = %v, want an *api.Error", body, err)
		}
	})
}

func TestDuplicateFields(t *testing.T) {
	r := httptest.NewRequest("POST", "/", strings.NewReader(`{"name":"a","name":"b"}`))
	r.Header.Set("Content-Type", "application/json")
	_, err := buildform.Read(r, &sink{})
	if e := api.AsError(err); err == nil || e.Code != api.Invalid || e.Details["field"] != "name" {
		t.Errorf("Read() = %v, want a refusal of name", err)
	}
}
