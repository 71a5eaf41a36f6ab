package wal

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxHistoryBytes bounds a history file. A line has some 60 bytes; a timeline begins with each recovery.
const MaxHistoryBytes = 1 << 20

// Ancestor is an earlier timeline, which was followed up to a position.
type Ancestor struct {
	Timeline Timeline
	End      LSN
}

// HistoryFile returns the name of the history file of a timeline.
func HistoryFile(t Timeline) string { return t.String() + ".history" }

// Path lists the timelines that lead to one, oldest first, with that one at the end. Its own End is 0.
type Path []Ancestor

// ParseHistory parses the history file of a timeline. The path of timeline 1, which has no file, is that of an empty
// one.
func ParseHistory(t Timeline, data []byte) (Path, error) {
	if len(data) > MaxHistoryBytes {
		return nil, fmt.Errorf("history of timeline %v has %d bytes, more than %d", t, len(data), MaxHistoryBytes)
	}
	var path Path
	for line := range strings.Lines(string(data)) {
		if text, _, _ := strings.Cut(line, "#"); strings.TrimSpace(text) == "" {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return nil, fmt.Errorf("history of timeline %v: invalid line %.80q", t, line)
		}
		n, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("history of timeline %v: invalid timeline %.40q", t, fields[0])
		}
		end, err := ParseLSN(fields[1])
		if err != nil {
			return nil, fmt.Errorf("history of timeline %v: %w", t, err)
		}
		one := Ancestor{Timeline(n), end}
		if one.Timeline == 0 || one.Timeline >= t || end == 0 {
			return nil, fmt.Errorf("history of timeline %v: it cannot descend from timeline %d at %v", t, n, end)
		}
		if last := len(path) - 1; last >= 0 && (path[last].Timeline >= one.Timeline || path[last].End > end) {
			return nil, fmt.Errorf("history of timeline %v: its lines are not in order", t)
		}
		path = append(path, one)
	}
	return append(path, Ancestor{Timeline: t}), nil
}

// Last returns the timeline at the end of the path.
func (p Path) Last() Timeline { return p[len(p)-1].Timeline }

// Begin returns the position at which the path enters a timeline, and whether it does at all.
func (p Path) Begin(t Timeline) (LSN, bool) {
	var begin LSN
	for _, one := range p {
		if one.Timeline == t {
			return begin, true
		}
		begin = one.End
	}
	return 0, false
}

// End returns where the path leaves a timeline, 0 for the last, and whether it is on the path.
func (p Path) End(t Timeline) (LSN, bool) {
	for _, one := range p {
		if one.Timeline == t {
			return one.End, true
		}
	}
	return 0, false
}

// At returns the timeline that the path follows at a position: the record that begins there is of that timeline.
func (p Path) At(at LSN) Timeline {
	for _, one := range p {
		if one.End == 0 || at < one.End {
			return one.Timeline
		}
	}
	return p.Last()
}
