package checkpoint

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// manySpans returns more spans of this process's memory than one system call transfers.
func manySpans(t *testing.T) (mem []byte, spans []Span) {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, 16<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	start, err := strconv.ParseUint(fmt.Sprintf("%p", mem), 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3000) {
		spans = append(spans, Span{start + i*pageSize, start + i*pageSize + pageSize/2})
	}
	return mem, spans
}

func TestTransferManySpans(t *testing.T) {
	mem, spans := manySpans(t)
	for i := range spans {
		mem[i*pageSize] = byte(i)
	}
	buf := make([]byte, len(spans)*pageSize/2)
	if err := Read(os.Getpid(), spans, buf); err != nil {
		t.Fatal(err)
	}
	pages := make([][]byte, len(spans))
	for i := range spans {
		pages[i] = buf[i*pageSize/2 : (i+1)*pageSize/2]
		if pages[i][0] != byte(i) {
			t.Fatalf("span %d was not read, want all", i)
		}
		pages[i][1] = byte(i + 1)
	}
	if err := Write(os.Getpid(), spans, buf); err != nil {
		t.Fatal(err)
	}
	for i := range spans {
		if mem[i*pageSize+1] != byte(i+1) {
			t.Fatalf("span %d was not written, want all", i)
		}
		pages[i][1] = byte(i + 2)
	}
	if err := writePages(os.Getpid(), spans, pages); err != nil {
		t.Fatal(err)
	}
	for i := range spans {
		if mem[i*pageSize+1] != byte(i+2) {
			t.Fatalf("page %d was not written, want all", i)
		}
	}
}

func TestTransferRefusesShortBuffer(t *testing.T) {
	_, spans := manySpans(t)
	if err := Read(os.Getpid(), spans, make([]byte, 100)); err == nil {
		t.Error("Read into a short buffer succeeded, want an error")
	}
	nothing := []Span{{pageSize, 2 * pageSize}}
	if err := Read(os.Getpid(), nothing, make([]byte, pageSize)); err == nil {
		t.Error("Read of unmapped memory succeeded, want an error")
	}
	if err := writePages(os.Getpid(), nothing, [][]byte{make([]byte, pageSize)}); err == nil {
		t.Error("writePages to unmapped memory succeeded, want an error")
	}
}

// TestTransferLargeSpan checks that several calls transfer a large span without a gap.
func TestTransferLargeSpan(t *testing.T) {
	const start, n = 1 << 40, 2*maxTransfer + pageSize
	mem, err := unix.Mmap(-1, 0, n+pageSize, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	var got bytes.Buffer
	call := func(_ int, local []unix.Iovec, remote []unix.RemoteIovec, _ uint) (int, error) {
		for _, r := range remote {
			fmt.Fprintf(&got, "%x+%x ", r.Base-start, r.Len)
		}
		return int(local[0].Len), nil
	}
	spans := []Span{{start, start + n}, {start + 2*n, start + 2*n + pageSize}}
	if err := transfer(call, 1, spans, mem); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(
		"0+%x %x+%x %x+%x %x+%x ",
		maxTransfer,
		maxTransfer,
		maxTransfer,
		2*maxTransfer,
		pageSize,
		2*n,
		pageSize,
	)
	if got.String() != want {
		t.Errorf("transferred %s, want %s", got.String(), want)
	}
}
