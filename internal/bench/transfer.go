package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

// Size and targets of the transfers. The target is transferFast megabytes a second, or the transferShare of the guest
// channel's own rate in the same run if that is less.
const (
	transferBytes = 64 << 20
	transferFast  = 60
	transferShare = 0.8
)

// Paths in a guest: a real file, and two that need no disk, to measure the guest channel alone.
const (
	transferFile = "/tmp/transfer.bin"
	transferSink = "/dev/null"
	transferHole = "/dev/shm/transfer.hole"
)

// transfer measures uploads and downloads through the API, and for each one the guest channel alone: the same number of
// bytes into /dev/null, and out of a sparse file in memory.
func (r *run) transfer(ctx context.Context) error {
	sb, err := r.make(ctx, api.CreateRequest{})
	if err != nil {
		return err
	}
	if _, err := r.sh(ctx, sb.ID, fmt.Sprintf("truncate -s %d %s", transferBytes, transferHole)); err != nil {
		return err
	}
	content := make([]byte, transferBytes)
	if _, err := rand.Read(content); err != nil {
		return err
	}
	up := r.rates("transfer_upload", "upload of a 64 MiB file to a sandbox through the API")
	rawUp := r.rates("transfer_upload_raw", "reference: upload of the same bytes to /dev/null")
	down := r.rates("transfer_download", "download of a 64 MiB file from a sandbox through the API")
	rawDown := r.rates("transfer_download_raw", "reference: download of a sparse file in the guest's memory")
	for range r.times(10) {
		for _, one := range []struct {
			s    *Series
			move func(context.Context, api.SandboxID, string, []byte) error
			name string
		}{
			{rawUp, r.store, transferSink},
			{up, r.store, transferFile},
			{rawDown, r.fetch, transferHole},
			{down, r.fetch, transferFile},
		} {
			began := time.Now()
			if err := one.move(ctx, sb.ID, one.name, content); err != nil {
				return err
			}
			one.s.Values = append(one.s.Values, transferBytes/1e6/time.Since(began).Seconds())
		}
	}
	for _, s := range []*Series{up, rawUp, down, rawDown} {
		s.close()
	}
	against(up, rawUp)
	against(down, rawDown)
	return r.remove(ctx, sb.ID)
}

// rates adds a series in megabytes a second, where more is better.
func (r *run) rates(name, what string) *Series {
	s := r.series(name, what, nil)
	s.Unit = "MB/s"
	return s
}

// against sets the target of a series, which the reference of the same run may lower, and notes the share of the
// reference that was reached.
func against(s, reference *Series) {
	s.Target = &Target{AtLeast: min(transferFast, transferShare*reference.P50)}
	s.Note = fmt.Sprintf("%.0f %% of the guest channel", 100*s.P50/reference.P50)
	s.close()
}

// store writes content to a file in the sandbox.
func (r *run) store(ctx context.Context, id api.SandboxID, name string, content []byte) error {
	_, err := r.cl.Files.Write(ctx, id, name, bytes.NewReader(content), int64(len(content)), client.WriteOptions{})
	return err
}

// fetch reads a file, which must be as long as content, and discards it.
func (r *run) fetch(ctx context.Context, id api.SandboxID, name string, content []byte) error {
	f, err := r.cl.Files.Read(ctx, id, name)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, f)
	if err == nil && n != int64(len(content)) {
		err = fmt.Errorf("read %d bytes, want %d", n, len(content))
	}
	return errors.Join(err, f.Close())
}
