package fcapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// newTestClient returns a client whose monitor reads one request and responds with raw.
func newTestClient(t *testing.T, v fcapi.Version, raw string) (*fcapi.Client, *string) {
	t.Helper()
	seen := new(string)
	c := fcapi.New(v, func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			req, err := http.ReadRequest(bufio.NewReader(theirs))
			if err != nil {
				return
			}
			body, _ := io.ReadAll(req.Body)
			*seen = req.Method + " " + req.URL.Path + " " + string(body)
			_, _ = io.WriteString(theirs, raw)
		}()
		return ours, nil
	})
	t.Cleanup(c.Close)
	return c, seen
}

func httpResponse(status, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

const noContent = "HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n"

// TestBodies compares every request with the JSON of the API documentation.
func TestBodies(t *testing.T) {
	limit := &fcapi.RateLimiter{Bandwidth: &fcapi.TokenBucket{Size: 1000, RefillMillis: 1000}}
	for _, c := range []struct {
		name string
		call func(context.Context, *fcapi.Client) error
		want string
	}{
		{"boot", func(ctx context.Context, c *fcapi.Client) error {
			return c.SetBootSource(ctx, fcapi.BootSource{Kernel: "k", Initrd: "i", Args: "a"})
		}, `PUT /boot-source {"kernel_image_path":"k","initrd_path":"i","boot_args":"a"}`},
		{"machine", func(ctx context.Context, c *fcapi.Client) error {
			return c.SetMachine(ctx, fcapi.MachineConfig{VCPUs: 2, MemoryMiB: 512, TrackDirty: true,
				HugePages: fcapi.PagesSmall})
		}, `PUT /machine-config {"vcpu_count":2,"mem_size_mib":512,"smt":false,"track_dirty_pages":true,` +
			`"huge_pages":"None"}`},
		{"drive", func(ctx context.Context, c *fcapi.Client) error {
			return c.AddDrive(ctx, fcapi.Drive{ID: "disk0", Path: "disk0", ReadOnly: true, Cache: fcapi.CacheWriteback,
				Limiter: limit})
		}, `PUT /drives/disk0 {"drive_id":"disk0","path_on_host":"disk0","is_root_device":false,"is_read_only":true,` +
			`"cache_type":"Writeback","rate_limiter":{"bandwidth":{"size":1000,"refill_time":1000}}}`},
		{"drive_patch", func(ctx context.Context, c *fcapi.Client) error {
			return c.ChangeDrive(ctx, fcapi.DrivePatch{ID: "disk0", Path: "disk0"})
		}, `PATCH /drives/disk0 {"drive_id":"disk0","path_on_host":"disk0"}`},
		{"network", func(ctx context.Context, c *fcapi.Client) error {
			return c.AddNetwork(ctx, fcapi.NetworkInterface{ID: "eth0", Device: "tap0", MAC: "06:00:00:00:00:01"})
		}, `PUT /network-interfaces/eth0 {"iface_id":"eth0","host_dev_name":"tap0","guest_mac":"06:00:00:00:00:01"}`},
		{"network_patch", func(ctx context.Context, c *fcapi.Client) error {
			return c.ChangeNetwork(ctx, fcapi.NetworkPatch{ID: "eth0", In: limit})
		}, `PATCH /network-interfaces/eth0 {"iface_id":"eth0","rx_rate_limiter":{"bandwidth":{"size":1000,` +
			`"refill_time":1000}}}`},
		{"vsock", func(ctx context.Context, c *fcapi.Client) error {
			return c.SetVsock(ctx, fcapi.Vsock{CID: 3, Path: "v.sock"})
		}, `PUT /vsock {"guest_cid":3,"uds_path":"v.sock"}`},
		{"entropy", func(ctx context.Context, c *fcapi.Client) error { return c.SetEntropy(ctx, fcapi.Entropy{}) },
			`PUT /entropy {}`},
		{"balloon", func(ctx context.Context, c *fcapi.Client) error {
			return c.SetBalloon(ctx, fcapi.Balloon{DeflateOnOOM: true, Reporting: true})
		}, `PUT /balloon {"amount_mib":0,"deflate_on_oom":true,"free_page_reporting":true}`},
		{"balloon_patch", func(ctx context.Context, c *fcapi.Client) error { return c.ResizeBalloon(ctx, 64) },
			`PATCH /balloon {"amount_mib":64}`},
		{"hotplug", func(ctx context.Context, c *fcapi.Client) error {
			return c.SetHotplugMemory(ctx, fcapi.HotplugMemory{TotalMiB: 1024, SlotMiB: 128, BlockMiB: 2})
		}, `PUT /hotplug/memory {"total_size_mib":1024,"slot_size_mib":128,"block_size_mib":2}`},
		{"metadata_service", func(ctx context.Context, c *fcapi.Client) error {
			return c.SetMetadataService(ctx, fcapi.MetadataService{Version: fcapi.MetadataTokens,
				Networks: []string{"eth0"}})
		}, `PUT /mmds/config {"version":"V2","network_interfaces":["eth0"]}`},
		{"metadata", func(ctx context.Context, c *fcapi.Client) error { return c.SetMetadata(ctx, []byte(`{"a":1}`)) },
			`PUT /mmds {"a":1}`},
		{"plug", func(ctx context.Context, c *fcapi.Client) error { return c.PlugMemory(ctx, 256) },
			`PATCH /hotplug/memory {"requested_size_mib":256}`},
		{"start", func(ctx context.Context, c *fcapi.Client) error { return c.Start(ctx) },
			`PUT /actions {"action_type":"InstanceStart"}`},
		{"pause", func(ctx context.Context, c *fcapi.Client) error { return c.Pause(ctx) },
			`PATCH /vm {"state":"Paused"}`},
		{"resume", func(ctx context.Context, c *fcapi.Client) error { return c.Resume(ctx) },
			`PATCH /vm {"state":"Resumed"}`},
		{"create", func(ctx context.Context, c *fcapi.Client) error {
			return c.CreateSnapshot(ctx, fcapi.SnapshotCreate{Type: fcapi.SnapshotDiff, State: "s", Memory: "m"})
		}, `PUT /snapshot/create {"snapshot_type":"Diff","snapshot_path":"s","mem_file_path":"m"}`},
		{"load", func(ctx context.Context, c *fcapi.Client) error {
			return c.LoadSnapshot(ctx, fcapi.SnapshotLoad{State: "s",
				Memory:     fcapi.MemoryBackend{Type: fcapi.BackendUffd, Path: "u"},
				TrackDirty: true, Resume: true, Networks: []fcapi.NetworkOverride{{ID: "eth0", Device: "tap1"}},
				HugePages: fcapi.PagesHuge})
		}, `PUT /snapshot/load {"snapshot_path":"s","mem_backend":{"backend_type":"Uffd","backend_path":"u"},` +
			`"track_dirty_pages":true,"resume_vm":true,` +
			`"network_overrides":[{"iface_id":"eth0","host_dev_name":"tap1"}],"huge_pages":"2M"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, seen := newTestClient(t, fcapi.Version{Major: 1, Minor: 17}, noContent)
			if err := c.call(t.Context(), client); err != nil {
				t.Fatal(err)
			}
			if *seen != c.want {
				t.Errorf("got  %s\nwant %s", *seen, c.want)
			}
		})
	}
}

func TestGates(t *testing.T) {
	for _, c := range []struct {
		name  string
		have  fcapi.Version
		field string
		call  func(context.Context, *fcapi.Client) error
	}{
		{"huge_pages", fcapi.Version{Major: 1, Minor: 16, Patch: 2}, "huge_pages",
			func(ctx context.Context, c *fcapi.Client) error {
				return c.LoadSnapshot(ctx, fcapi.SnapshotLoad{HugePages: fcapi.PagesHuge})
			}},
		{"track", fcapi.Version{Major: 1, Minor: 12}, "track_dirty_pages",
			func(ctx context.Context, c *fcapi.Client) error {
				return c.LoadSnapshot(ctx, fcapi.SnapshotLoad{TrackDirty: true})
			}},
		{"reporting", fcapi.Version{Major: 1, Minor: 13}, "free_page_reporting",
			func(ctx context.Context, c *fcapi.Client) error {
				return c.SetBalloon(ctx, fcapi.Balloon{Reporting: true})
			}},
		{"hotplug", fcapi.Version{Major: 1, Minor: 13}, "",
			func(ctx context.Context, c *fcapi.Client) error { return c.PlugMemory(ctx, 2) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, seen := newTestClient(t, c.have, noContent)
			var newer *fcapi.NewerError
			if err := c.call(t.Context(), client); !errors.As(err, &newer) || newer.Field != c.field ||
				newer.Have != c.have {
				t.Errorf("got error %v, want a NewerError for %q", err, c.field)
			}
			if *seen != "" {
				t.Errorf("sent %s, want nothing", *seen)
			}
		})
	}
}

func TestResponses(t *testing.T) {
	old := fcapi.Version{Major: 1, Minor: 15, Patch: 1}
	client, _ := newTestClient(t, old, httpResponse("400 ", "{\"fault_message\":\"it\\u0007 is not\"}"))
	var fault *fcapi.FaultError
	if err := client.Pause(t.Context()); !errors.As(err, &fault) || fault.Status != 400 ||
		fault.Fault != "it  is not" ||
		fault.Op != "PATCH /vm" {
		t.Errorf("Pause() = %v, want the fault message", err)
	}
	client, _ = newTestClient(t, old, httpResponse("200 ",
		`{"id":"m1","state":"Paused","vmm_version":"1.15.1","app_name":"FC"}`))
	if i, err := client.Instance(t.Context()); err != nil || i.State != fcapi.StatePaused || i.ID != "m1" {
		t.Errorf("Instance() = %+v, %v; want a paused m1", i, err)
	}
	client, _ = newTestClient(t, old, "")
	if err := client.Pause(t.Context()); !errors.Is(err, fcapi.ErrClosed) {
		t.Errorf("Pause() without a response = %v, want ErrClosed", err)
	}
	client, _ = newTestClient(t, old, "HTTP/1.1 200 \r\n\r\n"+strings.Repeat("x", 2<<20))
	if _, err := client.Instance(t.Context()); err == nil || !strings.Contains(err.Error(), "longer") {
		t.Errorf("Instance() with an endless response = %v, want an error about its length", err)
	}
	hanging := fcapi.New(old, func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = theirs.Close() })
		return ours, nil
	})
	why := errors.New("it takes too long")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, why)
	defer cancel()
	if err := hanging.Pause(ctx); !errors.Is(err, why) {
		t.Errorf("Pause() of a hanging monitor = %v, want the cause of the context", err)
	}
}

// TestTooLarge checks that a request which Firecracker would take apart is not sent.
func TestTooLarge(t *testing.T) {
	client, seen := newTestClient(t, fcapi.Version{Major: 1, Minor: 17}, noContent)
	document := json.RawMessage(`"` + strings.Repeat("x", fcapi.MaxBody-2) + `"`)
	if err := client.SetMetadata(t.Context(), document); err != nil || len(*seen) < fcapi.MaxBody {
		t.Errorf("SetMetadata() of %d bytes = %v, sent %d; want all sent", len(document), err, len(*seen))
	}
	client, _ = newTestClient(t, fcapi.Version{Major: 1, Minor: 17}, noContent)
	var large *fcapi.TooLargeError
	if err := client.SetMetadata(t.Context(), append(document, ' ')); err != nil {
		t.Errorf("SetMetadata() with a space at the end = %v, want nil: it is not part of the request", err)
	}
	document = json.RawMessage(`"` + strings.Repeat("x", fcapi.MaxBody-1) + `"`)
	client, seen = newTestClient(t, fcapi.Version{Major: 1, Minor: 17}, noContent)
	if err := client.SetMetadata(t.Context(), document); !errors.As(err, &large) || large.Bytes != fcapi.MaxBody+1 ||
		*seen != "" {
		t.Errorf("SetMetadata() of %d bytes = %v, sent %.20q; want a TooLargeError, nothing sent", len(document), err,
			*seen)
	}
}

// TestFaults checks the messages of both kinds of error bodies, and which mean an inactive driver.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		body, want string
		notActive  bool
	}{
		{`{"fault_message":"Device not activated yet."}`, "Device not activated yet.", true},
		{`{"fault_message":"Error: Device is not active"}`, "Error: Device is not active", true},
		{`{"fault_message":"No balloon device found."}`, "No balloon device found.", false},
		{`{"error":"Too many open connections"}`, "Too many open connections", false},
		{`{"other":1}`, `{"other":1}`, false},
		{`garbage`, "garbage", false},
	} {
		client, _ := newTestClient(t, fcapi.Version{Major: 1, Minor: 17}, httpResponse("400 ", c.body))
		var fault *fcapi.FaultError
		if err := client.ResizeBalloon(t.Context(), 1); !errors.As(err, &fault) || fault.Fault != c.want ||
			fault.NotActive() != c.notActive {
			t.Errorf("%s: got error %v, want %q, not active: %v", c.body, err, c.want, c.notActive)
		}
	}
}

func TestVersions(t *testing.T) {
	for text, want := range map[string]string{
		"Firecracker v1.15.1\n\n2026 exiting": "1.15.1", "1.17.0-dev": "1.17.0", "Firecracker v1.9.0": "1.9.0",
	} {
		if v, err := fcapi.ParseVersion(text); err != nil || v.String() != want {
			t.Errorf("ParseVersion(%q) = %v, %v; want %s", text, v, err, want)
		}
	}
	for _, text := range []string{"", "Firecracker", "v1.2", "99999.1.1x"} {
		if v, err := fcapi.ParseVersion(text); err == nil && v.Major == 99999 || err == nil && text != "99999.1.1x" {
			t.Errorf("ParseVersion(%q) = %v, want an error", text, v)
		}
	}
	a, b := fcapi.Version{Major: 1, Minor: 9}, fcapi.Version{Major: 1, Minor: 10}
	if a.Compare(b) >= 0 || b.AtLeast(1, 11) || !b.AtLeast(1, 10) {
		t.Error("1.9 does not compare as older than 1.10")
	}
}

// FuzzResponse sends arbitrary responses to a client, which must return, with a printable error if
// any.
func FuzzResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\n{}"))
	f.Add([]byte("HTTP/1.1 400 \r\nContent-Length: 21\r\n\r\n{\"fault_message\":\"a\"}"))
	f.Add([]byte(noContent))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c := fcapi.New(fcapi.Version{Major: 1, Minor: 17}, func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				if _, err := http.ReadRequest(bufio.NewReader(theirs)); err == nil {
					_, _ = theirs.Write(raw)
				}
			}()
			return ours, nil
		})
		defer c.Close()
		i, err := c.Instance(t.Context())
		text := i.ID + i.State + i.Version
		var fault *fcapi.FaultError
		if errors.As(err, &fault) {
			text += fault.Fault
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) || len(text) > 4000 {
			t.Errorf("got error %q, want printable text", text)
		}
		if data, err := json.Marshal(text); err != nil || len(data) == 0 {
			t.Error(err)
		}
	})
}
