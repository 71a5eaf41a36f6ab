package chunkstore

import (
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// tagBytes is the size of a tenant's tag.
const tagBytes = 16

// tag stands for a tenant in the store. Only the master key reveals which one it is.
type tag [tagBytes]byte

// String implements fmt.Stringer.
func (t tag) String() string { return hex.EncodeToString(t[:]) }

// domain begins the purpose of every key of the chunk store.
const domain = "pandastack chunk 1: "

func derive(secret []byte, purpose string) []byte { return keyring.Derive(secret, domain+purpose) }

// tagOf returns the tag of a tenant. No workspace is named "", so none has the tag of Common.
func tagOf(k *keyring.Keyring, tenant Tenant) tag {
	return tag(k.Key(domain + "tag of " + string(tenant))[:tagBytes])
}

// tenantKeys are the keys of one tenant.
type tenantKeys struct {
	tag                       tag
	nameKey, sealKey, signKey []byte
	manifestSecret            []byte // encrypts manifests
}

func newTenantKeys(k *keyring.Keyring, t tag) tenantKeys {
	own := k.Key(domain + "workspace " + t.String())
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

func newKeys(k *keyring.Keyring, t tag) *keys {
	return &keys{own: newTenantKeys(k, t), common: newTenantKeys(k, tagOf(k, Common))}
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

func newAEAD(key []byte) (cipher.AEAD, error) { return keyring.NewAEAD(key) }

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
