package knownhosts_test

import (
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/knownhosts"
)

const key = "git.example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"

func TestValid(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, key: true, key + "\n": true, "# from a scan\n" + key + " comment\r\n": true,
		"[git.example.com]:2222,192.0.2.1" + strings.TrimPrefix(key, "git.example.com"): true,
		"ssh-ed25519 AAAA": false, "@cert-authority " + key: false, key + "\x00": false,
		strings.Repeat(key+"\n", knownhosts.MaxLines+1): false, strings.Repeat("x", knownhosts.MaxBytes+1): false,
	} {
		if got := knownhosts.Valid(text); got != want {
			t.Errorf("Valid(%.80q) = %t", text, got)
		}
	}
	if got := knownhosts.Clean("# a\n\n" + key + "\r\n"); got != key+"\n" {
		t.Errorf("Clean() = %q", got)
	}
}
