package volume

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/image/ext4"
)

// Format makes an empty ext4 file system in a new file. Every user of a guest may make files in its root.
func Format(ctx context.Context, out *os.File, sizeMiB int) error {
	var root bytes.Buffer
	w := tar.NewWriter(&root)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o1777, ModTime: time.Now()})
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		_, err = ext4.Write(ctx, &root, out, ext4.Options{SizeMiB: sizeMiB, Label: "volume"})
	}
	return err
}
