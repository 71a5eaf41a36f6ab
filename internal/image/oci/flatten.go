package oci

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"
)

// maxConcurrent is how many layers are fetched at a time: one waits for the network while another is unpacked.
const maxConcurrent = 2

// Report is the result of Flatten.
type Report struct {
	Entries int   // number of files, directories and links
	Bytes   int64 // size of all files
}

// Flatten writes the files of img as one tar stream. It writes nothing before all layers are verified.
func (p *Puller) Flatten(ctx context.Context, img *Image, w io.Writer) (report Report, err error) {
	fail := func(err error) error { return fmt.Errorf("flatten image %s: %w", img.Ref, err) }
	left := newBudgets(p.opt.Limits)
	layers, err := p.fetch(ctx, img, left)
	defer func() { err = errors.Join(err, closeAll(layers), p.prune()) }()
	if err != nil {
		return report, fail(err)
	}
	t := newTree(2*p.opt.Limits.MaxEntries, left.all.memory)
	for i, l := range layers {
		if err := t.apply(i, l.records); err != nil {
			return report, fail(err)
		}
		l.records = nil
	}
	out := bufio.NewWriterSize(w, 256<<10)
	if report, err = t.write(ctx, layers, out); err != nil {
		return report, fail(err)
	}
	if err := out.Flush(); err != nil {
		return report, fail(err)
	}
	return report, nil
}

func closeAll(layers []*unpacked) error {
	var all error
	for _, l := range layers {
		if l != nil {
			all = errors.Join(all, l.file.Close())
		}
	}
	return all
}

// fetch returns all layers, verified. On an error it also returns the layers that it has, for the caller to close.
func (p *Puller) fetch(ctx context.Context, img *Image, left *sharedBudget) ([]*unpacked, error) {
	layers := make([]*unpacked, len(img.Layers))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxConcurrent)
	client := sync.OnceValues(func() (*http.Client, error) { return p.client(ctx, img.repository) })
	for i := range img.Layers {
		g.Go(func() error {
			given := left.remaining()
			rest := given
			var err error
			layers[i], err = p.layer(ctx, client, img, i, &rest)
			if err == nil {
				err = left.charge(rest, given)
			}
			if cause := context.Cause(ctx); err != nil && cause != nil {
				err = cause // an interrupted layer may look corrupt
			}
			if err != nil {
				return fmt.Errorf("layer %d: %w", i, err)
			}
			return nil
		})
	}
	return layers, g.Wait()
}

// write writes the tree as a tar stream.
func (t *tree) write(ctx context.Context, layers []*unpacked, w io.Writer) (report Report, err error) {
	out := tar.NewWriter(w)
	root := *t.root.inode.header
	root.Name = "./"
	if err := out.WriteHeader(&root); err != nil {
		return report, err
	}
	buf := make([]byte, 256<<10)
	err = t.visit(func(name string, n *node) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		report.Entries++
		ino := n.inode
		h := *ino.header
		h.Name = name
		if n.isDir() {
			h.Name += "/"
		} else if ino.first != "" {
			h.Typeflag, h.Linkname, h.Size, h.PAXRecords = tar.TypeLink, ino.first, 0, nil
		}
		ino.first = name
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeLink {
			h.Size = 0
		}
		if h.Typeflag != tar.TypeSymlink && h.Typeflag != tar.TypeLink {
			h.Linkname = ""
		}
		if err := out.WriteHeader(&h); err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg || h.Size == 0 {
			return nil
		}
		report.Bytes += h.Size
		_, err := io.CopyBuffer(plainWriter{out}, io.NewSectionReader(layers[ino.layer].file, ino.offset, h.Size), buf)
		return err
	})
	if err != nil {
		return report, err
	}
	return report, out.Close()
}

// plainWriter hides all methods but Write, so that io.CopyBuffer uses its buffer.
type plainWriter struct{ io.Writer }

// openCached verifies and returns the layer l from the file at path, or nil if the file does not exist. It removes a
// file that does not contain the layer.
func (p *Puller) openCached(ctx context.Context, path string, l Layer, left *budget) (*unpacked, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("open cached layer: %w", err)
	}
	stream := newHashReader(
		&budgetReader{r: contextReader{ctx, bufio.NewReaderSize(f, 1<<20)}, budget: left, layer: p.opt.Limits.MaxBytes},
	)
	records, err := index(stream, left)
	if err == nil && stream.String() == l.DiffID {
		return &unpacked{f, records}, touch(path)
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, errors.Join(cause, f.Close())
	}
	if errors.Is(err, ErrTooLarge) {
		return nil, errors.Join(err, f.Close())
	}
	return nil, errors.Join(f.Close(), os.Remove(path))
}

// contextReader fails when its context has ended.
type contextReader struct {
	ctx context.Context //nolint:containedctx // the reader is used only during the call that made it
	r   io.Reader
}

// Read implements io.Reader.
func (c contextReader) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
