// Package waltest writes write-ahead logs for tests, in the server's format.
package waltest

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/wal"
)

const (
	pageBytes  = 8192
	recordHead = 24
	magic      = 0xD113 // of PostgreSQL 16
)

// Log is a log that grows. It begins with a segment.
type Log struct {
	System   uint64
	Timeline wal.Timeline

	start wal.LSN
	data  []byte
	prev  wal.LSN
}

// New makes an empty log of timeline 1 that begins with a segment.
func New(system uint64, segment uint64) *Log {
	return &Log{System: system, Timeline: 1, start: wal.LSN(segment * wal.SegmentBytes)}
}

// Start returns the position of the first byte.
func (l *Log) Start() wal.LSN { return l.start }

// End returns the position after the last byte.
func (l *Log) End() wal.LSN { return l.start + wal.LSN(len(l.data)) }

// Bytes returns the bytes from one position to another.
func (l *Log) Bytes(from, to wal.LSN) []byte { return l.data[from-l.start : to-l.start] }

// Segment returns a segment, or its first bytes if the log ends in it.
func (l *Log) Segment(number uint64) []byte {
	s := wal.Segment{Timeline: l.Timeline, Number: number}
	return l.Bytes(s.Start(), min(s.End(), l.End()))
}

// Fork returns a log of another timeline that begins with a copy.
func (l *Log) Fork(t wal.Timeline) *Log {
	fork := *l
	fork.Timeline, fork.data = t, append([]byte(nil), l.data...)
	return &fork
}

// header begins a page. remaining is what is left of the record that reaches into it.
func (l *Log) header(remaining int) {
	at := l.End()
	h := make([]byte, 24, 40)
	info := uint16(0)
	if remaining > 0 {
		info |= 1
	}
	if at%wal.SegmentBytes == 0 {
		info |= 2
		h = h[:40]
		binary.LittleEndian.PutUint64(h[24:], l.System)
		binary.LittleEndian.PutUint32(h[32:], wal.SegmentBytes)
		binary.LittleEndian.PutUint32(h[36:], pageBytes)
	}
	binary.LittleEndian.PutUint16(h, magic)
	binary.LittleEndian.PutUint16(h[2:], info)
	binary.LittleEndian.PutUint32(h[4:], uint32(l.Timeline))
	binary.LittleEndian.PutUint64(h[8:], uint64(at))
	binary.LittleEndian.PutUint32(h[16:], uint32(remaining))
	l.data = append(l.data, h...)
}

// append adds a record and returns where it begins.
func (l *Log) append(manager, info byte, xid uint32, content []byte) wal.LSN {
	if len(l.data)%pageBytes == 0 {
		l.header(0)
	}
	start := l.End()
	record := make([]byte, recordHead, recordHead+len(content))
	binary.LittleEndian.PutUint32(record, uint32(recordHead+len(content)))
	binary.LittleEndian.PutUint32(record[4:], xid)
	binary.LittleEndian.PutUint64(record[8:], uint64(l.prev))
	record[16], record[17] = info, manager
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Update(0, table, content), table, record[:20])
	binary.LittleEndian.PutUint32(record[20:], sum)
	record = append(record, content...)
	for len(record) > 0 {
		if len(l.data)%pageBytes == 0 {
			l.header(len(record))
		}
		n := min(len(record), pageBytes-len(l.data)%pageBytes)
		l.data, record = append(l.data, record[:n]...), record[n:]
	}
	for len(l.data)%8 != 0 {
		l.data = append(l.data, 0)
	}
	l.prev = start
	return start
}

// mainData frames the main data of a record.
func mainData(data []byte) []byte {
	if len(data) < 256 {
		return append([]byte{255, byte(len(data))}, data...)
	}
	return append(binary.LittleEndian.AppendUint32([]byte{254}, uint32(len(data))), data...)
}

func micros(t time.Time) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(wal.Micros(t)))
}

// Commit adds the commit of a transaction.
func (l *Log) Commit(xid uint32, at time.Time) wal.LSN {
	return l.append(1, 0, xid, mainData(micros(at)))
}

// Abort adds the abort of a transaction.
func (l *Log) Abort(xid uint32, at time.Time) wal.LSN {
	return l.append(1, 0x20, xid, mainData(micros(at)))
}

// RestorePoint adds a named restore point.
func (l *Log) RestorePoint(name string, at time.Time) wal.LSN {
	return l.append(0, 0x70, 0, mainData(append(micros(at), append([]byte(name), make([]byte, 64-len(name))...)...)))
}

// Data adds a record with n bytes that mean nothing.
func (l *Log) Data(n int) wal.LSN {
	content := make([]byte, n)
	for i := range content {
		content[i] = byte(i*7 + n)
	}
	return l.append(10, 0, 1, mainData(content))
}

// Switch ends the segment.
func (l *Log) Switch() wal.LSN {
	at := l.append(0, 0x40, 0, nil)
	for len(l.data)%wal.SegmentBytes != 0 {
		if len(l.data)%pageBytes == 0 {
			l.header(0)
		}
		l.data = append(l.data, make([]byte, pageBytes-len(l.data)%pageBytes)...)
	}
	return at
}

// Fill adds records until the log has reached a position.
func (l *Log) Fill(to wal.LSN) {
	for l.End() < to {
		l.Data(60_000)
	}
}
