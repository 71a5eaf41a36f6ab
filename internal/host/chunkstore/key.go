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

// Keyring holds the master key, from which all others derive. Hosts that share an object store share it. The
// master key allows reading and forging everything in the store; without it nothing can be read again.
type Keyring struct{ master []byte }

// OpenKeyring reads the master key from a file of 64 hexadecimal digits. It makes the file if it does not
// exist, and rejects one that other users may read.
func OpenKeyring(path string) (*Keyring, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		fresh := make([]byte, keyBytes)
		_, _ = rand.Read(fresh) // never fails: it ends the program instead
		if err := durable.WriteFile(path, []byte(hex.EncodeToString(fresh)+"\n"), 0o600); err != nil {
			return nil, fmt.Errorf("create master key of the object store: %w", err)
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

// NewKeyring makes a keyring of a master key of 32 bytes.
func NewKeyring(master []byte) (*Keyring, error) {
	if len(master) != keyBytes {
		return nil, fmt.Errorf("master key of the object store: it has %d bytes, want %d", len(master), keyBytes)
	}
	return &Keyring{master}, nil
}

// tagBytes is the size of a tenant's tag.
const tagBytes = 16

// tag stands for a tenant in the store. Only the master key reveals which one it is.
type tag [tagBytes]byte

// String implements fmt.Stringer.
func (t tag) String() string { return hex.EncodeToString(t[:]) }

// derive is HKDF with SHA-256. It cannot fail for keys of this size.
func derive(secret []byte, purpose string) []byte {
	key, err := hkdf.Key(sha256.New, secret, nil, "pandastack chunk 1: "+purpose, keyBytes)
	if err != nil {
		return nil // not reached: an empty key makes every use of it fail
	}
	return key
}

// tag returns the tag of a tenant. No workspace is named "", so none has the tag of Common.
func (k *Keyring) tag(tenant Tenant) tag {
	return tag(derive(k.master, "tag of "+string(tenant))[:tagBytes])
}

// tenantKeys are the keys of one tenant.
type tenantKeys struct {
	tag                       tag
	nameKey, sealKey, signKey []byte
	manifestSecret            []byte // encrypts manifests
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

// keys are the keys for a tenant's manifests: its own, and those of Common. They are immutable.
type keys struct {
	own, common tenantKeys
}

func (k *Keyring) keys(t tag) *keys {
	return &keys{own: k.tenantKeys(t), common: k.tenantKeys(k.tag(Common))}
}

// of returns the keys for a chunk.
func (k *keys) of(common bool) *tenantKeys {
	if common {
		return &k.common
	}
	return &k.own
}

// name returns the name of a chunk. It depends on the content and on the stored sizes of the frames, so that
// one name never stands for objects with different layouts.
func (r *tenantKeys) name(pages []byte, frames []int) Name {
	h := hmac.New(sha256.New, r.nameKey)
	var sizes []byte
	for _, n := range frames {
		sizes = fmt.Appendf(sizes, "%d,", n)
	}
	_, _ = fmt.Fprintf(h, "%d %s\n", len(pages), sizes) // a hash accepts any input
	_, _ = h.Write(pages)
	return Name(h.Sum(nil))
}

// aead returns the cipher of one chunk.
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

// deletedKey is the key of a manifest for some time after its deletion: see GC.
func (r *tenantKeys) deletedKey(id ID) string { return "w/" + r.tag.String() + "/d/" + string(id) }

func (id ID) check() error {
	if id == "" || len(id) > 64 || strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("invalid id %q: want 1 to 64 lower-case letters and digits", string(id))
	}
	return nil
}
