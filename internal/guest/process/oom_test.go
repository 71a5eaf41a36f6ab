package process

import (
	"path/filepath"
	"testing"
)

func TestKilledForMemory(t *testing.T) {
	const words = "Out of memory: Killed process 42 (python3) total-vm:1024kB, anon-rss:512kB"
	for _, c := range []struct {
		record string
		want   bool
	}{
		{"3,339,5140900,-;" + words, true},
		{"3,339,5140900,-,caller=T1;" + words + "\n SUBSYSTEM=x\n", true},
		{"3,339,5140900,-;Memory cgroup out of memory: Killed process 42 (a)", true},
		{"12,339,5140900,-;" + words, false}, // written by a program in the guest
		{"3,339,5140900,-;Out of memory: Killed process 421 (python3)", false},
		{"3,339,5140900,-;Out of memory: Killed process 4 (42 (x)", false},
		{"3,339,5140900,-;x\n" + words, false},
		{"3,339,5140900,-;other " + words, false},
		{"-1,339;" + words, false},
		{"x;" + words, false},
		{words, false},
		{"", false},
	} {
		if got := killedForMemory([]byte(c.record), 42); got != c.want {
			t.Errorf("killedForMemory(%q) = %v", c.record, got)
		}
	}
	if outOfMemory(filepath.Join(t.TempDir(), "none"), 42) {
		t.Error("outOfMemory returned true without a log")
	}
}

func FuzzKilledForMemory(f *testing.F) {
	f.Add([]byte("3,339,5140900,-;Out of memory: Killed process 42 (x)"))
	f.Fuzz(func(t *testing.T, record []byte) {
		if killedForMemory(record, 42) && len(record) < len("0;Out of memory: Killed process 42 (") {
			t.Errorf("killedForMemory(%q) = true", record)
		}
	})
}
