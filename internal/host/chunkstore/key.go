package chunkstore

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

// keyBytes is the size of every key.
const keyBytes = 32

// Keyring holds the master key, which all others derive from. Hosts that share an object store share it.
// Who has it can read and forge everything in the store; without it nothing can be read again.
type Keyring struct{ master []byte }

// OpenKeyring reads the master key from a file of 64 hexadecimal digits, which it makes when there is
// none. A file that others may read is refused.
func OpenKeyring(path string) (*Keyring, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		fresh := make([]byte, keyBytes)
		_, _ = rand.Read(fresh) // never fails: it ends the program instead
		if err := durable.WriteFile(path, []byte(hex.EncodeToString(fresh)+"\n"), 0o600); err != nil {
			return nil, fmt.Errorf("make the master key of the object store: %w", err)
		}
		info, err = os.Lstat(path)
	}
	if err != nil {
		return nil, fmt.Errorf("master key of the object store: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || info.Size() > 1024 {
		return nil, fmt.Errorf(
			"master key of the object store: %s is not a small file that only its owner can read (mode 0600)",
			path,
		)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("master key of the object store: %w", err)
	}
	master, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(master) != keyBytes {
		return nil, fmt.Errorf(
			"master key of the object store: %s does not hold %d hexadecimal digits",
			path,
			2*keyBytes,
		)
	}
	return &Keyring{master}, nil
}

// NewKeyring makes a ring of a master key of 32 bytes.
func NewKeyring(master []byte) (*Keyring, error) {
	if len(master) != keyBytes {
		return nil, fmt.Errorf("master key of the object store: %d bytes, not %d", len(master), keyBytes)
	}
	return &Keyring{master}, nil
}

// tagBytes is the size of what stands for a workspace in the store.
const tagBytes = 16

// tag stands for a workspace in the store: who does not have the master key cannot tell whose it is.
type tag [tagBytes]byte

func (t tag) String() string { return hex.EncodeToString(t[:]) }

// derive is HKDF with SHA-256. It cannot fail for keys of this size.
func derive(secret []byte, purpose string) []byte {
	key, err := hkdf.Key(sha256.New, secret, nil, "pandastack chunk 1: "+purpose, keyBytes)
	if err != nil {
		return nil // not reached: an empty key makes every use of it fail
	}
	return key
}

// tag of a space. No workspace is named "", so none has the tag of Common.
func (k *Keyring) tag(s Tenant) tag {
	return tag(derive(k.master, "tag of "+string(s))[:tagBytes])
}

// tenantKeys is the keys of one workspace, or of what is common to all.
type tenantKeys struct {
	tag                       tag
	nameKey, sealKey, signKey []byte
	manifestSecret            []byte // of manifests
}

func (k *Keyring) tenantKeys(t tag) tenantKeys {
	own := derive(k.master, "workspace "+t.String())
	return tenantKeys{
		tag:            t,
		nameKey:        derive(own, "names"),
		sealKey:        derive(own, "seals"),
		signKey:        derive(own, "sign"),
		manifestSecret: derive(own, "manifests"),
	}
}

// keys are what a manifest of one space needs: its own, and those of what is common. They are immutable.
type keys struct {
	own, common tenantKeys
}

func (k *Keyring) keys(t tag) *keys {
	return &keys{own: k.tenantKeys(t), common: k.tenantKeys(k.tag(Common))}
}

// of is the realm that a chunk lies in.
func (k *keys) of(common bool) *tenantKeys {
	if common {
		return &k.common
	}
	return &k.own
}

// name is a chunk's: of its content, and of the sizes its frames have in the store, so that one name
// never stands for objects that are laid out differently.
func (r *tenantKeys) name(pages []byte, frames []int) Name {
	h := hmac.New(sha256.New, r.nameKey)
	var sizes []byte
	for _, n := range frames {
		sizes = fmt.Appendf(sizes, "%d,", n)
	}
	_, _ = fmt.Fprintf(h, "%d %s\n", len(pages), sizes) // a hash takes everything
	_, _ = h.Write(pages)
	return Name(h.Sum(nil))
}

// aead is the cipher of one chunk.
func (r *tenantKeys) aead(n Name) (cipher.AEAD, error) {
	return newAEAD(derive(r.sealKey, "chunk "+n.String()))
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// Keys of objects in the store.
func (r *tenantKeys) chunkKey(n Name) string {
	text := n.String()
	return "w/" + r.tag.String() + "/c/" + text[:2] + "/" + text[2:]
}

func (r *tenantKeys) manifestKey(id ID) string { return "w/" + r.tag.String() + "/m/" + string(id) }

// deletedKey is where a manifest is kept for a while after it was deleted: see Collect.
func (r *tenantKeys) deletedKey(id ID) string { return "w/" + r.tag.String() + "/d/" + string(id) }

func (id ID) check() error {
	if id == "" || len(id) > 64 || strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("%q is not 1 to 64 lower-case letters and digits", string(id))
	}
	return nil
}
