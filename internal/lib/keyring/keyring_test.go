package keyring_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/keyring"
)

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "master.key")
	if _, err := keyring.Open(path); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.Open(path); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, first) {
		t.Errorf("the second Open changed the key file: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.Open(path); err == nil || !strings.Contains(err.Error(), "0600") {
		t.Errorf("Open of a file that all may read: got %v, want an error with 0600", err)
	}
	for name, text := range map[string]string{
		"short": "abcd", "empty": "", "other": strings.Repeat("z", 64), "long": strings.Repeat("a", 2000),
	} {
		bad := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := keyring.Open(bad); err == nil {
			t.Errorf("Open, %s: got nil, want an error", name)
		}
	}
}

// What is in a store stays readable: a key depends on the master key and the purpose alone.
func TestKeysDoNotChange(t *testing.T) {
	ring, err := keyring.New(bytes.Repeat([]byte{1}, keyring.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	const want = "46ee11ec5cbc94b432abb515b7e6bf788301bd4f35a003292ba41603ce2fa30b"
	if got := hex.EncodeToString(ring.Key("pandastack chunk 1: tag of ws")); got != want {
		t.Errorf("Key = %s, want %s", got, want)
	}
	if _, err := keyring.New(make([]byte, 31)); err == nil {
		t.Error("New of 31 bytes: got nil, want an error")
	}
}

// Sealed content opens with its key and head alone, and every changed or missing byte is noticed.
func TestSeal(t *testing.T) {
	key, head := keyring.Derive([]byte("secret"), "a"), []byte("HEAD")
	sealed, err := keyring.Seal(key, head, []byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := keyring.Seal(key, head, []byte("content")); err != nil || bytes.Equal(again, sealed) {
		t.Errorf("equal content is sealed equally, %v", err)
	}
	if got, err := keyring.Unseal(key, head, bytes.Clone(sealed)); err != nil || string(got) != "content" {
		t.Errorf("Unseal = %q, %v; want the content", got, err)
	}
	check := func(what string, key, head, sealed []byte) {
		t.Helper()
		if got, err := keyring.Unseal(key, head, sealed); !errors.Is(err, keyring.ErrSealed) {
			t.Errorf("Unseal with %s = %q, %v; want ErrSealed", what, got, err)
		}
	}
	check("another key", keyring.Derive([]byte("secret"), "b"), head, bytes.Clone(sealed))
	check("another head", key, []byte("HEAP"), bytes.Clone(sealed))
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		check("a changed byte", key, head, changed)
		check("missing bytes", key, head, bytes.Clone(sealed[:i]))
	}
}
