// Package basebackup stores base backups of databases in an archive.
//
// Take streams the data directory from the running server. Store reads it from files, such as a clone of the volume
// that was made between pg_backup_start and pg_backup_stop. Both store the same format: a tar archive as the server
// sends it, and a backup manifest with SHA-256 checksums, against which the archive was verified.
//
// A base backup exists when all of it, and the log that it needs, is in the archive. A failure or kill before leaves
// nothing that is listed.
package basebackup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/manifest"
	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

const (
	maxManifest = 32 << 20
	// discardLimit bounds the removal of what a failed backup has stored.
	discardLimit = 30 * time.Second
)

// Options of a base backup.
type Options struct {
	Label string // shown by the server while it runs; default "pandastack"
	// Variant and Collation identify the build of the server and the version of its collations.
	Variant, Collation string
	// Archived waits until the log up to a position is in the archive. The backup exists only afterwards. A nil
	// function does not wait.
	Archived func(ctx context.Context, t wal.Timeline, at wal.LSN) error
	// Idle is the longest time in which the server may send nothing; a checkpoint must be possible in it. Default
	// 10 min.
	Idle time.Duration
	// Now returns the time; default time.Now.
	Now func() time.Time
}

func (o *Options) fill() {
	if o.Label == "" {
		o.Label = "pandastack"
	}
	if o.Idle <= 0 {
		o.Idle = 10 * time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Take streams a base backup of a running server into its archive.
func Take(ctx context.Context, server replication.Config, a *archive.Archive, opt Options) (archive.Base, error) {
	opt.fill()
	conn, err := replication.Dial(ctx, server)
	if err != nil {
		return archive.Base{}, err
	}
	defer conn.Close()
	system, err := conn.Identify()
	if err != nil {
		return archive.Base{}, err
	}
	if err := conn.CheckSegments(); err != nil {
		return archive.Base{}, err
	}
	t := &transfer{a: a, opt: opt}
	t.base = archive.Base{System: system.ID, Started: opt.Now().UTC(), Variant: opt.Variant, Collation: opt.Collation}
	var text bytes.Buffer
	t.base.Stop, err = conn.BaseBackup(opt.Label, opt.Idle, replication.BackupSink{
		Begin:   func(start wal.LSN, timeline wal.Timeline) error { return t.begin(ctx, start, timeline) },
		Archive: func(data []byte) error { _, err := t.Write(data); return err },
		Manifest: func(data []byte) error {
			if text.Len()+len(data) > maxManifest {
				return fmt.Errorf("the backup manifest has more than %d bytes", maxManifest)
			}
			text.Write(data)
			return nil
		},
	})
	return t.commit(ctx, err, func(found *manifest.Manifest, _ []string) ([]byte, error) {
		listed, err := manifest.Parse(text.Bytes())
		if err != nil {
			return nil, err
		}
		return text.Bytes(), listed.Match(found)
	})
}

// transfer is a base backup that is being stored. What is written to it goes to the archive and to a reader that
// computes checksums.
type transfer struct {
	a      *archive.Archive
	opt    Options
	base   archive.Base
	stored *archive.BaseWriter
	pipe   *io.PipeWriter
	result chan collected
}

// collected is the result of the reader.
type collected struct {
	found *manifest.Manifest
	names []string
	err   error
}

func (t *transfer) begin(ctx context.Context, start wal.LSN, timeline wal.Timeline) error {
	t.base.Start, t.base.Timeline = start, timeline
	t.stored = t.a.NewBase(ctx, archive.NewBaseID(timeline, start))
	var r *io.PipeReader
	r, t.pipe = io.Pipe()
	t.result = make(chan collected, 1)
	go func() { // commit waits for the result
		var c collected
		c.found, c.names, c.err = manifest.Collect(r)
		if c.err == nil {
			_, c.err = io.Copy(io.Discard, r) // what follows the end of the archive
		}
		_ = r.CloseWithError(c.err) // never fails
		t.result <- c
	}()
	return nil
}

// Write implements io.Writer.
func (t *transfer) Write(data []byte) (int, error) {
	if _, err := t.pipe.Write(data); err != nil {
		return 0, err
	}
	return t.stored.Write(data)
}

// commit makes the base exist if err is nil and check accepts what was written. Otherwise it removes what is stored.
func (t *transfer) commit(ctx context.Context, err error,
	check func(*manifest.Manifest, []string) ([]byte, error)) (archive.Base, error) {
	if t.stored == nil {
		return archive.Base{}, err
	}
	_ = t.pipe.CloseWithError(err) // never fails; a nil error is the end
	c := <-t.result
	if err == nil {
		err = c.err
	}
	if err = t.finish(ctx, err, c, check); err == nil {
		return t.base, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardLimit)
	defer cancel()
	return archive.Base{}, errors.Join(err, t.stored.Discard(ctx))
}

func (t *transfer) finish(ctx context.Context, err error, c collected,
	check func(*manifest.Manifest, []string) ([]byte, error)) error {
	if err != nil {
		return err
	}
	text, err := check(c.found, c.names)
	if err != nil {
		return err
	}
	t.base.Files = len(c.found.Files)
	if err := t.stored.Upload(); err != nil {
		return err
	}
	if t.opt.Archived != nil {
		if err := t.opt.Archived(ctx, t.base.Timeline, t.base.Stop); err != nil {
			return fmt.Errorf("wait for the log up to %v: %w", t.base.Stop, err)
		}
	}
	t.base.Finished = t.opt.Now().UTC()
	return t.stored.Commit(ctx, &t.base, text)
}
