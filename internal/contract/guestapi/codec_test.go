package guestapi

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var moment = time.Unix(1_795_000_000, 123456789)

var (
	spec = ProcessSpec{Argv: []string{"a", "", "c d"}, Env: map[string]string{"K": "v", "L": ""}, Dir: "/d", User: "u",
		Tag: "t", Stdin: true, PTY: &Size{24, 80}, Timeout: 3 * time.Second}
	info = ProcessInfo{
		PID:     1 << 31,
		Tag:     "t",
		Argv:    []string{"x"},
		Env:     map[string]string{"K": "v"},
		Dir:     "/",
		User:    "root",
		PTY:     true,
		Started: moment,
		Exit:    &Exit{Code: 137, Signal: 9, TimedOut: true, Error: "e", CPU: 5, Wall: 7},
	}
	file = FileInfo{Path: "/a/b", Name: "b", Kind: KindSymlink, Target: "c", Size: 1 << 40, Mode: 0o4755, UID: 1000,
		GID: 1 << 31, User: "u", Group: "g", Modified: moment, Metadata: map[string]string{"a": "b"}}
	identity = Identity{
		MachineID:  "mch1",
		Hostname:   "h",
		Generation: 1 << 63,
		Time:       moment,
		Entropy:    bytes.Repeat([]byte{7}, 64),
		Network: &Network{
			Address: "192.168.241.2/29",
			Gateway: "192.168.241.1",
			DNS:     []string{"1.1.1.1"},
			MTU:     1500,
		},
		Env:      map[string]string{"A": "b"},
		User:     "user",
		DiskGrow: true,
		Files:    map[string][]byte{"/f": []byte("x")},
		Mounts: []Mount{
			{Disk: 1, Dir: "/data", Options: []string{"noatime", "commit=30"}},
			{Disk: 2, Dir: "/more"},
		},
		Volumes: []VolumeMount{{Disk: 3, Dir: "/vol", ReadOnly: true, Bytes: 1 << 40, Check: true}},
	}
	stats = Stats{
		MemTotal:     1,
		MemAvailable: 2,
		MemCached:    3,
		DiskTotal:    4,
		DiskUsed:     5,
		CPUs:         6,
		CPUBusy:      7,
		Load1:        0.25,
		Uptime:       9,
		Processes:    10,
		NetRx:        11,
		NetTx:        12,
		Time:         moment,
	}
)

// checkRoundTrip fails unless a message decodes to the value that was encoded.
func checkRoundTrip[T any](t *testing.T, got T, err error, want T) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("decoded %+v, %v\nwant %+v", got, err, want)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, s := range []ProcessSpec{spec, {Shell: "true", Login: true}} {
		got, err := ParseProcessSpec(AppendProcessSpec(nil, &s))
		checkRoundTrip(t, got, err, s)
	}
	request := ProcessRequest{
		Ref:    ProcessRef{7, "t"},
		From:   Offsets{1, 2, 3},
		Signal: 15,
		Group:  true,
		Size:   Size{1, 2},
	}
	gotRequest, err := ParseProcessRequest(AppendProcessRequest(nil, &request))
	checkRoundTrip(t, gotRequest, err, request)
	infos := []ProcessInfo{info, {PID: 1, Shell: "x", Started: moment}}
	gotInfos, err := ParseProcessInfos(AppendProcessInfo(AppendProcessInfo(nil, &infos[0]), &infos[1]), 2, free)
	checkRoundTrip(t, gotInfos, err, infos)
	for _, e := range []Event{{Stream: StreamPTY, Offset: 1 << 50, Data: []byte("abc")}, {Exit: info.Exit}} {
		got, err := ParseEvent(AppendEvent(nil, &e))
		checkRoundTrip(t, got, err, e)
	}
	pid, err := ParsePID(AppendPID(nil, 1<<32-1))
	checkRoundTrip(t, pid, err, 1<<32-1)
	question := FileRequest{
		Path:     "/a",
		To:       "b",
		User:     "u",
		Flag:     true,
		Depth:    3,
		Offset:   4,
		Length:   -1,
		Mode:     0o644,
		Size:     -1,
		Metadata: map[string]string{"k": ""},
	}
	gotQuestion, err := ParseFileRequest(AppendFileRequest(nil, &question))
	checkRoundTrip(t, gotQuestion, err, question)
	gotFile, err := ParseFileInfo(AppendFileInfo(nil, &file))
	checkRoundTrip(t, gotFile, err, file)
	link := file
	link.End = &LinkEnd{Path: "/a/c", Kind: KindDir, Mode: 0o700}
	gotFile, err = ParseFileInfo(AppendFileInfo(nil, &link))
	checkRoundTrip(t, gotFile, err, link)
	for _, bad := range []FileInfo{
		{Path: "/a", Kind: KindFile, End: &LinkEnd{Path: "/b", Kind: KindFile}},
		{Path: "/a", Kind: KindSymlink, End: &LinkEnd{Path: "/b", Kind: KindSymlink}},
		{Path: "/a", Kind: KindSymlink, End: &LinkEnd{Path: "/b", Kind: 9}},
		{Path: "/a", Kind: KindSymlink, End: &LinkEnd{Path: "/b", Kind: KindFile, Mode: 1 << 20}},
	} {
		if got, err := ParseFileInfo(AppendFileInfo(nil, &bad)); !errors.Is(err, ErrFormat) {
			t.Errorf("ParseFileInfo(%+v to %+v) = %+v, %v, want %v", bad, bad.End, got, err, ErrFormat)
		}
	}
	gotFiles, err := ParseFileInfos(AppendFileInfo(AppendFileInfo(nil, &file), &file), 2, free)
	checkRoundTrip(t, gotFiles, err, []FileInfo{file, file})
	event := FileEvent{Op: OpOverflow, Path: "a/b"}
	gotEvent, err := ParseFileEvent(AppendFileEvent(nil, &event))
	checkRoundTrip(t, gotEvent, err, event)
	port := Port{Port: 65535, Address: "::", PID: 5, Program: "p"}
	gotPorts, err := ParsePorts(AppendPort(nil, &port), 1)
	checkRoundTrip(t, gotPorts, err, []Port{port})
	number, err := ParseDial(AppendDial(nil, 49983))
	checkRoundTrip(t, number, err, 49983)
	path, err := ParseDialSocket(AppendDialSocket(nil, "/run/socket"))
	checkRoundTrip(t, path, err, "/run/socket")
	sync, err := ParseFreeze(AppendFreeze(nil, true))
	checkRoundTrip(t, sync, err, true)
	noMounts := identity
	noMounts.Mounts = nil
	for _, id := range []Identity{identity, noMounts, {}} {
		got, err := ParseIdentity(AppendIdentity(nil, &id))
		checkRoundTrip(t, got, err, id)
	}
	action := VolumeRequest{Action: VolumeUnmount, Volume: identity.Volumes[0], Force: true}
	gotAction, err := ParseVolumeRequest(AppendVolumeRequest(nil, &action))
	checkRoundTrip(t, gotAction, err, action)
	report := VolumeReport{Check: CheckRepaired, Log: "fixed", Clean: true}
	gotReport, err := ParseVolumeReport(AppendVolumeReport(nil, &report))
	checkRoundTrip(t, gotReport, err, report)
	gotStats, err := ParseStats(AppendStats(nil, &stats))
	checkRoundTrip(t, gotStats, err, stats)
}

func TestRequestsAndStatus(t *testing.T) {
	b := AppendRequest(nil, OpRead, []byte("body"))
	op, body, missing, err := ParseRequest(b[:7])
	if op != OpRead || string(body) != "bo" || missing != 2 || err != nil {
		t.Errorf("ParseRequest() = %v, %q, %d, %v, want OpRead, bo, 2 missing", op, body, missing, err)
	}
	for _, bad := range [][]byte{nil, {1}, append(b, 0), {1, 255, 255, 255, 255}} {
		if _, _, _, err := ParseRequest(bad); !errors.Is(err, ErrFormat) {
			t.Errorf("ParseRequest(%v) = %v, want %v", bad, err, ErrFormat)
		}
	}
	if body, err := ParseStatus(append(AppendStatus(nil, nil), "rest"...)); string(body) != "rest" || err != nil {
		t.Errorf("ParseStatus(success) = %q, %v, want rest", body, err)
	}
	for _, kind := range []error{ErrInternal, ErrInvalid, ErrNotFound, ErrExists, ErrPermission, ErrNotDir, ErrIsDir,
		ErrNoSpace, ErrBusy, ErrRefused, ErrLost, context.Canceled, context.DeadlineExceeded} {
		_, err := ParseStatus(AppendStatus(nil, kind))
		if !errors.Is(err, kind) || err.Error() != kind.Error() {
			t.Errorf("ParseStatus(AppendStatus(%v)) = %v, want the same error", kind, err)
		}
	}
	unknown := errors.New("unknown\x1b[31m" + strings.Repeat("x", 5000))
	if _, err := ParseStatus(AppendStatus(nil, unknown)); !errors.Is(err, ErrInternal) || len(err.Error()) > MaxText ||
		strings.ContainsRune(err.Error(), 0x1b) {
		t.Errorf("ParseStatus(unknown error) = %q, want ErrInternal with at most %d printable bytes", err, MaxText)
	}
}

// Text that people see is printable UTF-8, whatever the guest sends.
func TestGuestTextIsPrintable(t *testing.T) {
	bad := "a\x1b]0;x\x07\xff\n"
	f := file
	f.User, f.Name = bad, bad
	got, err := ParseFileInfo(AppendFileInfo(nil, &f))
	if err != nil || strings.ContainsAny(got.User, "\x1b\x07\n") || !utf8.ValidString(got.User) ||
		!utf8.ValidString(got.Name) {
		t.Errorf("ParseFileInfo() = user %q, name %q, %v, want printable text", got.User, got.Name, err)
	}
	if p := Printable(strings.Repeat("ü", MaxText)); len(p) > MaxText || !utf8.ValidString(p) {
		t.Errorf(
			"Printable() = %d bytes, valid UTF-8 %v, want at most %d valid bytes",
			len(p),
			utf8.ValidString(p),
			MaxText,
		)
	}
}

func TestLimits(t *testing.T) {
	two := AppendFileInfo(AppendFileInfo(nil, &file), &file)
	if _, err := ParseFileInfos(two, 1, free); !errors.Is(err, ErrFormat) {
		t.Errorf("ParseFileInfos(two entries, limit 1) = %v, want %v", err, ErrFormat)
	}
	long := spec
	long.Tag = strings.Repeat("x", MaxName+1)
	if _, err := ParseProcessSpec(AppendProcessSpec(nil, &long)); !errors.Is(err, ErrFormat) {
		t.Errorf("ParseProcessSpec(long tag) = %v, want %v", err, ErrFormat)
	}
	negative := spec
	negative.Timeout = -1
	if _, err := ParseProcessSpec(AppendProcessSpec(nil, &negative)); !errors.Is(err, ErrFormat) {
		t.Errorf("ParseProcessSpec(negative timeout) = %v, want %v", err, ErrFormat)
	}
}

// No bytes make a parser panic or return more than they can hold.
func FuzzParsers(f *testing.F) {
	f.Add(AppendProcessSpec(nil, &spec))
	f.Add(AppendProcessInfo(nil, &info))
	f.Add(AppendFileInfo(nil, &file))
	f.Add(AppendIdentity(nil, &identity))
	f.Add(AppendStats(nil, &stats))
	f.Add(AppendVolumeRequest(nil, &VolumeRequest{Action: VolumeGrow, Volume: identity.Volumes[0]}))
	f.Add(AppendVolumeReport(nil, &VolumeReport{Check: CheckDamaged, Log: "x"}))
	f.Add(AppendEvent(nil, &Event{Exit: info.Exit}))
	f.Add([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = ParseProcessSpec(b)
		_, _ = ParseProcessRequest(b)
		if all, err := ParseProcessInfos(b, 1000, free); err == nil && len(all) > len(b) {
			t.Errorf("ParseProcessInfos() = %d processes of %d bytes, want at most as many", len(all), len(b))
		}
		_, _ = ParseEvent(b)
		_, _ = ParsePID(b)
		_, _ = ParseFileRequest(b)
		if i, err := ParseFileInfo(b); err == nil && (!utf8.ValidString(i.Path) || i.Size < 0) {
			t.Errorf("ParseFileInfo() = %+v, want valid UTF-8 and no negative size", i)
		}
		_, _ = ParseFileInfos(b, 1000, free)
		_, _ = ParseFileEvent(b)
		_, _ = ParsePorts(b, 1000)
		_, _ = ParseDial(b)
		_, _ = ParseDialSocket(b)
		_, _ = ParseFreeze(b)
		_, _ = ParseIdentity(b)
		_, _ = ParseVolumeRequest(b)
		if r, err := ParseVolumeReport(b); err == nil && (!utf8.ValidString(r.Log) || r.Check > CheckDamaged) {
			t.Errorf("ParseVolumeReport() = %+v, want valid UTF-8 and a known result", r)
		}
		_, _ = ParseStats(b)
		_, _, _, _ = ParseRequest(b)
		_, _ = ParseStatus(b)
	})
}

// free pays for everything.
func free(int64) error { return nil }

// held returns what do returns and how many bytes of memory that holds.
func held(do func() any) (any, int64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	v := do()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return v, int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// What is paid for a list is at least what the list holds, whatever a guest puts into it.
func TestListsPayForTheirMemory(t *testing.T) {
	small := FileInfo{Path: "/", Name: "a", Kind: KindFile}
	marked := FileInfo{Path: "/x", Name: "x", Kind: KindFile, Metadata: map[string]string{}}
	for i := range maxListItems {
		marked.Metadata[string(rune('0'+i))] = "v"
	}
	bare := ProcessInfo{PID: 1}
	full := ProcessInfo{PID: 1, Env: map[string]string{}}
	for i := range MaxEntries {
		full.Argv = append(full.Argv, "a")
		full.Env[strconv.Itoa(i)] = "b"
	}
	repeat := func(one []byte, n int) []byte { return bytes.Repeat(one, n) }
	files := func(b []byte, pay func(int64) error) (any, error) { return ParseFileInfos(b, 1<<20, pay) }
	processes := func(b []byte, pay func(int64) error) (any, error) { return ParseProcessInfos(b, 1<<20, pay) }
	for name, c := range map[string]struct {
		wire  []byte
		parse func([]byte, func(int64) error) (any, error)
	}{
		"small files":         {repeat(AppendFileInfo(nil, &small), 50_000), files},
		"files with metadata": {repeat(AppendFileInfo(nil, &marked), 2000), files},
		"bare processes":      {repeat(AppendProcessInfo(nil, &bare), 50_000), processes},
		"many arguments":      {repeat(AppendProcessInfo(nil, &full), 20), processes},
	} {
		t.Run(name, func(t *testing.T) {
			var paid int64
			list, got := held(func() any {
				v, err := c.parse(c.wire, func(n int64) error { paid += n; return nil })
				if err != nil {
					t.Fatal(err)
				}
				return v
			})
			runtime.KeepAlive(list)
			if got > paid {
				t.Errorf("%d bytes on the wire hold %d bytes of memory, and %d were paid", len(c.wire), got, paid)
			}
			if paid > 8*got {
				t.Errorf("%d bytes of memory cost %d: honest guests pay too much", got, paid)
			}
		})
	}
}

// A list without payment is not read to its end.
func TestUnpaidListEnds(t *testing.T) {
	no := errors.New("no memory")
	wire := bytes.Repeat(AppendFileInfo(nil, &FileInfo{Path: "/", Name: "a", Kind: KindFile}), 1000)
	left := 10
	pay := func(int64) error {
		if left--; left < 0 {
			return no
		}
		return nil
	}
	if _, err := ParseFileInfos(wire, 1<<20, pay); !errors.Is(err, no) || left != -1 {
		t.Errorf("ParseFileInfos() = %v with %d entries left to pay, want the first refusal", err, left)
	}
	left = 10
	wire = bytes.Repeat(AppendProcessInfo(nil, &ProcessInfo{PID: 1}), 1000)
	if _, err := ParseProcessInfos(wire, 1<<20, pay); !errors.Is(err, no) || left != -1 {
		t.Errorf("ParseProcessInfos() = %v with %d entries left to pay, want the first refusal", err, left)
	}
}
