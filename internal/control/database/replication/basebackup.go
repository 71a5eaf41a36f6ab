package replication

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// BackupSink receives a base backup. Errors of its methods end the backup and are returned.
type BackupSink struct {
	// Begin gets the position from which the log is needed, before anything else.
	Begin func(start wal.LSN, t wal.Timeline) error
	// Archive gets the bytes of the tar archive of the data directory.
	Archive func(data []byte) error
	// Manifest gets the bytes of the backup manifest, which follows the archive. nil: the server makes none, and
	// computes no hashes.
	Manifest func(data []byte) error
}

// ErrTablespaces means that a cluster has files outside its data directory.
var ErrTablespaces = errors.New(
	"the database has tablespaces of its own; move their tables to pg_default to back it up",
)

// BaseBackup streams the data directory and returns the position up to which the log is needed. The
// connection is given up if the server sends nothing for idle, which must be more than a checkpoint takes.
func (c *Conn) BaseBackup(label string, idle time.Duration, sink BackupSink) (stop wal.LSN, err error) {
	if strings.ContainsAny(label, `'\`) || len(label) > 200 {
		return 0, fmt.Errorf("invalid label %.40q of a base backup", label)
	}
	timer := time.AfterFunc(idle, func() { _ = c.net.Close() }) // the reader reports it
	defer timer.Stop()
	manifest := "MANIFEST 'yes', MANIFEST_CHECKSUMS 'SHA256'"
	if sink.Manifest == nil {
		manifest = "MANIFEST 'no'"
	}
	err = c.send("BASE_BACKUP (LABEL '" + label + "', CHECKPOINT 'fast', WAIT false, " + manifest + ")")
	if err != nil {
		return 0, err
	}
	b := backup{sink: sink}
	for {
		message, err := c.receive()
		if err != nil {
			return 0, err
		}
		timer.Reset(idle)
		switch m := message.(type) {
		case *pgproto3.DataRow:
			err = b.row(m.Values)
		case *pgproto3.RowDescription:
			b.result++
			b.rows = 0
		case *pgproto3.CopyData:
			err = b.data(m.Data)
		case *pgproto3.CopyOutResponse, *pgproto3.CopyDone, *pgproto3.CommandComplete:
		case *pgproto3.ReadyForQuery:
			return b.stop, b.complete()
		default:
			err = fmt.Errorf("unexpected message %T of the server in a base backup", message)
		}
		if err != nil {
			return 0, err
		}
	}
}

// backup is the state of a base backup that is being received.
type backup struct {
	sink     BackupSink
	result   int // number of results so far
	rows     int // of the current result
	begun    bool
	stop     wal.LSN
	archives int
	write    func([]byte) error // of the current archive or manifest
	manifest bool
}

// row handles a row: of the start, of the list of tablespaces, or of the end.
func (b *backup) row(values [][]byte) error {
	b.rows++
	if len(values) < 2 {
		return errors.New("base backup: the server sent a row without columns")
	}
	if b.result == 2 {
		if b.rows > 1 || len(values[0]) > 0 { // an OID stands for a tablespace outside the data directory
			return ErrTablespaces
		}
		return nil
	}
	at, err1 := wal.ParseLSN(string(values[0]))
	timeline, err2 := parseTimeline(values[1])
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("base backup: %w", err)
	}
	switch {
	case b.result == 1 && !b.begun:
		b.begun = true
		return b.sink.Begin(at, timeline)
	case b.result == 3 && b.stop == 0:
		b.stop = at
		return nil
	}
	return errors.New("base backup: the server sent an unexpected row")
}

// data handles a message of the copy, whose first byte is its kind.
func (b *backup) data(data []byte) error {
	if len(data) == 0 || !b.begun {
		return errors.New("base backup: the server sent an empty or early message")
	}
	kind, data := data[0], data[1:]
	switch kind {
	case 'n': // a new archive: its name, and the location of its tablespace
		b.archives++
		if b.archives > 1 || name(data) != "base.tar" {
			return ErrTablespaces
		}
		b.write = b.sink.Archive
		return nil
	case 'm':
		if b.manifest || b.archives == 0 || b.sink.Manifest == nil {
			return errors.New("base backup: the server sent an unexpected manifest")
		}
		b.manifest, b.write = true, b.sink.Manifest
		return nil
	case 'd':
		if b.write == nil {
			return errors.New("base backup: the server sent data of no archive")
		}
		return b.write(data)
	case 'p': // progress
		return nil
	}
	return fmt.Errorf("base backup: the server sent a message of the unknown kind %q", kind)
}

func (b *backup) complete() error {
	if b.stop == 0 || b.archives != 1 || b.manifest != (b.sink.Manifest != nil) {
		return errors.New("base backup: the server ended it early")
	}
	return nil
}

// name returns the text up to the first zero byte.
func name(data []byte) string {
	text, _, _ := bytes.Cut(data, []byte{0})
	return string(text)
}
