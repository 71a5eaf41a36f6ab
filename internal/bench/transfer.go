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

// transferBytes is what one measurement moves. At 60 MB/s it takes transferLimit milliseconds.
const (
	transferBytes = 64 << 20
	transferLimit = transferBytes / 60e3
)

// transfer measures files on their way in and out through the API.
func (r *run) transfer(ctx context.Context) error {
	sb, err := r.make(ctx, api.CreateRequest{})
	if err != nil {
		return err
	}
	content := make([]byte, transferBytes)
	if _, err := rand.Read(content); err != nil {
		return err
	}
	up := r.series("transfer_upload_64mib", "a file of 64 MiB into a sandbox through the API", &Target{P50: transferLimit})
	down := r.series("transfer_download_64mib", "the same back out", &Target{P50: transferLimit})
	const name = "/tmp/transfer.bin"
	for range r.times(10) {
		began := time.Now()
		_, err := r.cl.Files.Write(ctx, sb.ID, name, bytes.NewReader(content), transferBytes, client.WriteOptions{})
		r.add(up, time.Since(began), err)
		if err != nil {
			return err
		}
		began = time.Now()
		err = r.fetch(ctx, sb.ID, name)
		r.add(down, time.Since(began), err)
		if err != nil {
			return err
		}
	}
	return r.remove(ctx, sb.ID)
}

// fetch reads a whole file and throws it away.
func (r *run) fetch(ctx context.Context, id api.SandboxID, name string) error {
	f, err := r.cl.Files.Read(ctx, id, name)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, f)
	if err == nil && n != transferBytes {
		err = fmt.Errorf("%d bytes came of %d", n, int64(transferBytes))
	}
	return errors.Join(err, f.Close())
}
