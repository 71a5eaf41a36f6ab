package fctest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm/fake"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// newTestMonitor returns a monitor in this process, in a directory with a kernel.
func newTestMonitor(t *testing.T, release string) *monitor {
	t.Helper()
	v, err := fcapi.ParseVersion(release)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	if err := errors.Join(
		os.WriteFile("kernel", []byte("\x7fELF"), 0o600),
		os.WriteFile("disk", make([]byte, 4096), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	m := &monitor{
		version: v, settings: settings{payload: fcapi.MaxBody}, dir: dir, ctx: ctx, over: make(chan int, 1),
		phase: fcapi.StateNone,
	}
	t.Cleanup(func() {
		if m.vsock != nil {
			_ = m.vsock.l.Close() // ends its goroutine
		}
	})
	return m
}

// try makes one request and returns its status and its error.
func (m *monitor) try(method, path, body string) (int, string) {
	w := httptest.NewRecorder()
	var r *http.Request
	if body == "" {
		r = httptest.NewRequest(method, path, nil)
	} else {
		r = httptest.NewRequest(method, path, strings.NewReader(body))
	}
	m.ServeHTTP(w, r)
	var failed struct {
		Fault string `json:"fault_message"`
		Error string `json:"error"`
	}
	_ = json.Unmarshal(w.Body.Bytes(), &failed) // other bodies have no error
	if failed.Error != "" {
		return w.Code, "HTTP: " + failed.Error
	}
	return w.Code, failed.Fault
}

// TestRules checks what Firecracker refuses and what it takes. Each case is a list of requests, of which the last one
// has the result.
func TestRules(t *testing.T) {
	const (
		boot  = `PUT /boot-source {"kernel_image_path":"kernel"}`
		start = `PUT /actions {"action_type":"InstanceStart"}`
		small = `PUT /machine-config {"vcpu_count":1,"mem_size_mib":64}`
	)
	for _, c := range []struct {
		name, want string // "": success
		requests   []string
	}{
		{"smt_even", "", []string{`PUT /machine-config {"vcpu_count":2,"mem_size_mib":64,"smt":true}`}},
		{"smt_one", "", []string{`PUT /machine-config {"vcpu_count":1,"mem_size_mib":64,"smt":true}`}},
		{"smt_odd", "even number", []string{`PUT /machine-config {"vcpu_count":3,"mem_size_mib":64,"smt":true}`}},
		{"odd_without_smt", "", []string{`PUT /machine-config {"vcpu_count":3,"mem_size_mib":64}`}},
		{"slot_128", "", []string{`PUT /hotplug/memory {"total_size_mib":256,"slot_size_mib":128}`}},
		{"slot_64", "Slot size", []string{`PUT /hotplug/memory {"total_size_mib":256,"slot_size_mib":64}`}},
		{"block_3", "power of 2", []string{`PUT /hotplug/memory {"total_size_mib":384,"slot_size_mib":192,` +
			`"block_size_mib":3}`}},
		{"balloon_fits", "", []string{small, `PUT /balloon {"amount_mib":64,"deflate_on_oom":true}`}},
		{"balloon_over_memory", "cannot fit", []string{small, `PUT /balloon {"amount_mib":65,"deflate_on_oom":true}`}},
		{"memory_under_balloon", "balloon", []string{`PUT /balloon {"amount_mib":65,"deflate_on_oom":true}`, small}},
		{"balloon_inactive", "not activated", []string{small, boot,
			`PUT /balloon {"amount_mib":0,"deflate_on_oom":true}`, start, `PATCH /balloon {"amount_mib":8}`}},
		{"hotplug_inactive", "not active", []string{small, boot, `PUT /hotplug/memory {"total_size_mib":128}`, start,
			`PATCH /hotplug/memory {"requested_size_mib":64}`}},
		{"hotplug_status_while_inactive", "", []string{small, boot, `PUT /hotplug/memory {"total_size_mib":128}`, start,
			`GET /hotplug/memory`}},
		{"drive_unchanged", "different", []string{small, boot,
			`PUT /drives/d {"drive_id":"d","path_on_host":"disk","is_root_device":true}`, start,
			`PATCH /drives/d {"drive_id":"d"}`}},
		{"drive_changed", "", []string{small, boot,
			`PUT /drives/d {"drive_id":"d","path_on_host":"disk","is_root_device":true}`, start,
			`PATCH /drives/d {"drive_id":"d","path_on_host":"disk"}`}},
		{"metadata_before_boot", "", []string{`PUT /mmds {"a":1}`}},
		{"metadata_not_configured", "not initialized", []string{small, boot, start, `PUT /mmds {"a":1}`}},
		{"metadata_configured", "", []string{small, boot,
			`PUT /network-interfaces/e {"iface_id":"e","host_dev_name":"test0"}`,
			`PUT /mmds/config {"network_interfaces":["e"]}`, start, `PUT /mmds {"a":1}`}},
		{"metadata_of_any_type", "", []string{`PUT /mmds [1,"two"]`}},
		{"metadata_invalid", "JSON", []string{`PUT /mmds {`}},
		{"cid_2", "", []string{`PUT /vsock {"guest_cid":2,"uds_path":"v"}`}},
		{"vsock_again", "", []string{`PUT /vsock {"guest_cid":3,"uds_path":"v"}`,
			`PUT /vsock {"guest_cid":3,"uds_path":"v"}`}},
		{"get_with_body", "cannot have a body", []string{`GET / {}`}},
		{"too_large", "HTTP: Request payload", []string{`PUT /mmds "` + strings.Repeat("x", fcapi.MaxBody) + `"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newTestMonitor(t, "1.17.0")
			for i, request := range c.requests {
				words := append(strings.SplitN(request, " ", 3), "")
				status, fault := m.try(words[0], words[1], words[2])
				ok := status < 300
				last := i == len(c.requests)-1
				if !last && !ok || last && ok != (c.want == "") || last && !strings.Contains(fault, c.want) {
					t.Errorf("%.80s: status %d, %q; want %q at the end", request, status, fault, c.want)
				}
			}
		})
	}
}

// TestActiveDevices checks that devices are active once the guest has accepted a connection, and in snapshots of it.
func TestActiveDevices(t *testing.T) {
	m := newTestMonitor(t, "1.17.0")
	for _, r := range [][3]string{
		{"PUT", "/machine-config", `{"vcpu_count":1,"mem_size_mib":64}`},
		{"PUT", "/boot-source", `{"kernel_image_path":"kernel","boot_args":"pandastack.channel=vsock:5"}`},
		{"PUT", "/balloon", `{"amount_mib":0,"deflate_on_oom":true}`},
		{"PUT", "/vsock", `{"guest_cid":3,"uds_path":"v"}`},
		{"PUT", "/actions", `{"action_type":"InstanceStart"}`},
	} {
		if status, fault := m.try(r[0], r[1], r[2]); status != 204 {
			t.Fatalf("%v: status %d, %q; want 204", r, status, fault)
		}
	}
	if status, _ := m.try("PATCH", "/balloon", `{"amount_mib":1}`); status != 400 {
		t.Errorf("PATCH /balloon before the guest's drivers: status %d, want 400", status)
	}
	if got := connections(t, "v", 5); got != "drop drop drop open" {
		t.Errorf("connections to a booting guest: %s, want three drops", got)
	}
	if status, fault := m.try("PATCH", "/balloon", `{"amount_mib":1}`); status != 204 {
		t.Errorf("PATCH /balloon: status %d, %q; want 204", status, fault)
	}
	if status, _ := m.try("PATCH", "/vm", `{"state":"Paused"}`); status != 204 {
		t.Errorf("pause: status %d, want 204", status)
	}
	if status, fault := m.try("PUT", "/snapshot/create", `{"snapshot_path":"s","mem_file_path":"m"}`); status != 204 {
		t.Fatalf("capture: status %d, %q; want 204", status, fault)
	}
	if s, err := readState("s"); err != nil || !s.Shape.Active {
		t.Errorf("the snapshot has %+v, %v; want active devices", s.Shape, err)
	}
}

// connections connects to a port of the guest until it stays connected, and returns what became of each connection.
func connections(t *testing.T, path string, port int) string {
	t.Helper()
	var all []string
	for range 10 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, "CONNECT 5\n"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 32)
		if n, err := conn.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), "OK ") {
			all = append(all, "drop")
			continue
		}
		if _, err := conn.Write(make([]byte, 1<<10)); err == nil { // not a greeting: the guest ignores it
			if uc, ok := conn.(*net.UnixConn); ok {
				_ = uc.CloseWrite() // a guest that serves the connection ends it
			}
		}
		all = append(all, "open")
		break
	}
	return strings.Join(all, " ")
}

// TestDeadConnection checks that the first connection to a restored guest opens and dies in releases before 1.16.
func TestDeadConnection(t *testing.T) {
	for release, dead := range map[string]int{"1.15.1": 1, "1.17.0": 0} {
		m := newTestMonitor(t, release)
		m.shape.Vsock = &fcapi.Vsock{CID: 3, Path: "v"}
		if err := m.openVsock(0); err != nil {
			t.Fatal(err)
		}
		m.vsock.guestStarted(fake.NewGuest(), 5, 0)
		m.vsock.dropNext(m.version)
		if m.vsock.dead != dead {
			t.Errorf("%s: %d connections die, want %d", release, m.vsock.dead, dead)
		}
		conn, err := net.Dial("unix", "v")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "CONNECT 5\n"); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, len("OK 1073741824\n"))
		if _, err := io.ReadFull(conn, line); err != nil || string(line) != "OK 1073741824\n" {
			t.Fatalf("%s: response %q, %v; want OK", release, line, err)
		}
		if dead > 0 {
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(line); !errors.Is(err, io.EOF) {
				t.Errorf("%s: Read of a dead connection = %v, want io.EOF", release, err)
			}
		}
		_ = conn.Close()
		if m.vsock.wasServed() == (dead > 0) {
			t.Errorf("%s: the guest has accepted the connection: %v", release, m.vsock.wasServed())
		}
	}
}

// TestLoadRules checks overrides of unknown interfaces, when clock_realtime is known, and that a request after a
// failed load aborts the process.
func TestLoadRules(t *testing.T) {
	for release, known := range map[string]bool{"1.15.0": false, "1.15.1": true, "1.16.0": true} {
		m := newTestMonitor(t, release)
		_, fault := m.try("PUT", "/snapshot/load", `{"snapshot_path":"none","mem_file_path":"m","clock_realtime":true}`)
		if strings.Contains(fault, "unknown field") == known {
			t.Errorf("%s: load with clock_realtime: %q; want the field known: %v", release, fault, known)
		}
	}
	m := newTestMonitor(t, "1.17.0")
	state := stateFile{stateMagic, snapshotVersion(m.version), shape{VCPUs: 1, MemoryMiB: 2,
		Networks: []fcapi.NetworkInterface{{ID: "eth0", Device: "test0"}}}, 0}
	if err := errors.Join(writeState("s", state), os.WriteFile("m", make([]byte, 2<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	status, fault := m.try("PUT", "/snapshot/load", `{"snapshot_path":"s","mem_backend":{"backend_type":"File",`+
		`"backend_path":"m"},"network_overrides":[{"iface_id":"eth1","host_dev_name":"test1"}]}`)
	if status != 400 || !strings.Contains(fault, "Unknown Network Device") {
		t.Errorf("load with an unknown interface: status %d, %q; want 400", status, fault)
	}
	if code := <-m.over; code != exitGeneric {
		t.Errorf("exit code after a failed load = %d, want %d", code, exitGeneric)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w := httptest.NewRecorder()
		m.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil)) // responds only to the end of the test
	}()
	if code := <-m.over; code != exitAbort {
		t.Errorf("exit code of a request after a failed load = %d, want %d", code, exitAbort)
	}
}

// TestTooManyConnections checks that the eleventh connection gets an error.
func TestTooManyConnections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: newTestMonitor(t, "1.17.0")}
	done := make(chan error, 1)
	go func() { done <- server.Serve(newLimited(l, maxConnections)) }()
	t.Cleanup(func() {
		_ = server.Close() // open connections are closed as well
		<-done
	})
	for i := range maxConnections + 1 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i < maxConnections {
			if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 12)
			if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "HTTP/1.1 200" {
				t.Fatalf("connection %d: response %q, %v; want 200", i+1, buf, err)
			}
			continue
		}
		text, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 503 ") ||
			!strings.Contains(string(text), `"error": "Too many open connections"`) {
			t.Errorf("connection %d: response %q, %v; want 503", i+1, text, err)
		}
	}
}
