package nodebackup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/argon2"

	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// Errors of this package, to be compared with errors.Is.
var (
	ErrNoRepository = errors.New("there are no backups of nodes at this place")
	ErrPassphrase   = errors.New("the passphrase is not the one that the first backup at this place was made with")
	ErrNotFound     = errors.New("no such backup; 'pandastack backup list' shows those there are")
	ErrNewer        = errors.New("the backup was made by a newer release of pandastack: use that one or a later one")
)

// keyObject holds the master key of a repository, sealed under its passphrase.
const keyObject = "node-backups.key"

// sealHead begins the sealed master key.
const sealHead = "pandastack node backups 1\n"

// tenant owns the manifests of a repository. No workspace shares its master key.
const tenant chunkstore.Tenant = "node"

// MinPassphrase is the length of the shortest passphrase, in bytes.
const MinPassphrase = 12

// sealedKey is the content of keyObject. The parameters are those of Argon2id.
type sealedKey struct {
	Version   int    `json:"version"`
	Time      uint32 `json:"time"`
	MemoryKiB uint32 `json:"memory_kib"`
	Threads   uint8  `json:"threads"`
	Salt      []byte `json:"salt"`
	Sealed    []byte `json:"sealed"`
}

// check bounds what a key in the object store can make this program spend.
func (k sealedKey) check() error {
	switch {
	case k.Version > 1:
		return ErrNewer
	case k.Version != 1, k.Time < 1, k.Time > 64, k.MemoryKiB < 8, k.MemoryKiB > 1<<20, k.Threads < 1, k.Threads > 64,
		len(k.Salt) < 8, len(k.Salt) > 64:
		return errors.New("its parameters are out of range")
	}
	return nil
}

func (k sealedKey) derive(passphrase string) []byte {
	return argon2.IDKey([]byte(passphrase), k.Salt, k.Time, k.MemoryKiB, k.Threads, keyring.KeyBytes)
}

// Repository has the backups of nodes at one place. All methods may be called concurrently, by several hosts.
type Repository struct {
	chunks *chunkstore.Store
	log    *slog.Logger
}

// Options of a Repository.
type Options struct {
	Passphrase string
	Create     bool // make a repository if there is none
	Log        *slog.Logger
	Chunks     chunkstore.Config // for tests
}

// Open opens the repository in an object store, which stays the caller's. It returns ErrNoRepository or ErrPassphrase.
func Open(ctx context.Context, objects blob.Store, opt Options) (*Repository, error) {
	if len(opt.Passphrase) < MinPassphrase {
		return nil, fmt.Errorf("the passphrase has %d bytes: use one of %d or more", len(opt.Passphrase), MinPassphrase)
	}
	sealed, err := readKey(ctx, objects)
	if errors.Is(err, blob.ErrNotFound) && opt.Create {
		sealed, err = makeKey(ctx, objects, opt.Passphrase)
	}
	if errors.Is(err, blob.ErrNotFound) {
		return nil, ErrNoRepository
	}
	if err != nil {
		return nil, err
	}
	master, err := keyring.Unseal(sealed.derive(opt.Passphrase), []byte(sealHead), sealed.Sealed)
	if err != nil {
		return nil, ErrPassphrase
	}
	ring, err := keyring.New(master)
	if err != nil {
		return nil, err
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	opt.Chunks.Log = opt.Log
	chunks, err := chunkstore.New(objects, ring, opt.Chunks)
	if err != nil {
		return nil, err
	}
	return &Repository{chunks: chunks, log: opt.Log}, nil
}

func readKey(ctx context.Context, objects blob.Store) (k sealedKey, err error) {
	r, err := objects.Get(ctx, keyObject, 0, -1)
	if err != nil {
		return k, err
	}
	data, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err := errors.Join(err, r.Close()); err != nil {
		return k, err
	}
	if err := json.Unmarshal(data, &k); err != nil {
		return k, fmt.Errorf("%s is damaged: %w", keyObject, err)
	}
	if err := k.check(); err != nil {
		return k, fmt.Errorf("%s: %w", keyObject, err)
	}
	return k, nil
}

// makeKey stores a new master key, and returns the one that is there if another process was faster.
func makeKey(ctx context.Context, objects blob.Store, passphrase string) (sealedKey, error) {
	k := sealedKey{Version: 1, Time: 3, MemoryKiB: 64 << 10, Threads: 4, Salt: make([]byte, 16)}
	master := make([]byte, keyring.KeyBytes)
	_, _ = rand.Read(k.Salt) // never fails: it ends the program instead
	_, _ = rand.Read(master)
	var err error
	if k.Sealed, err = keyring.Seal(k.derive(passphrase), []byte(sealHead), master); err != nil {
		return k, err
	}
	data, err := json.Marshal(k)
	if err != nil {
		return k, err
	}
	err = objects.PutIfAbsent(ctx, keyObject, bytes.NewReader(data), int64(len(data)))
	if errors.Is(err, blob.ErrExists) {
		return readKey(ctx, objects)
	}
	return k, err
}

// Close frees the memory of the repository.
func (r *Repository) Close() error { return r.chunks.Close() }

// formatVersion is the format of backups; later ones are refused with ErrNewer.
const formatVersion = 1

// ID is the name of a backup: the time when it began and four random letters.
type ID string

func newID(now time.Time) ID {
	return ID(strings.ToLower(now.UTC().Format("20060102t150405z") + rand.Text()[:4]))
}

// Backup describes a backup of a node.
type Backup struct {
	ID      ID        `json:"id"`
	Created time.Time `json:"created_at"`
	Release string    `json:"release"` // of the program that made it
	Host    string    `json:"host"`    // id of the host
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"`  // of the files, without holes
	Stored  int64     `json:"stored"` // of its objects, which it may share with other backups
}

// description is the part of the last manifest of a backup, which makes it complete.
type description struct {
	Version int             `json:"version"`
	Release string          `json:"release"`
	Schema  int64           `json:"schema"` // of the database
	Host    string          `json:"host"`
	Created time.Time       `json:"created"`
	Parts   []chunkstore.ID `json:"parts"` // manifests with the content of the files
	Files   int             `json:"files"`
	Bytes   int64           `json:"bytes"`
	Stored  int64           `json:"stored"`
}

// maxParts bounds the manifests of one backup.
const maxParts = 10_000

// describe reads the description of a manifest; nil if the manifest is a part of a backup.
func describe(m *chunkstore.Manifest) (*description, error) {
	var d description
	if err := json.Unmarshal(m.Meta, &d); err != nil {
		return nil, fmt.Errorf("backup %s: %w", m.ID, errors.Join(chunkstore.ErrVersion, err))
	}
	switch {
	case d.Version > formatVersion:
		return nil, fmt.Errorf("backup %s (release %q): %w", m.ID, d.Release, ErrNewer)
	case d.Version != formatVersion, len(d.Parts) > maxParts:
		return nil, fmt.Errorf("backup %s: %w", m.ID, chunkstore.ErrVersion)
	}
	return &d, nil
}

func (d *description) backup(id ID) Backup {
	return Backup{ID: id, Created: d.Created, Release: d.Release, Host: d.Host, Files: d.Files, Bytes: d.Bytes,
		Stored: d.Stored}
}

// partSuffix separates the id of a backup from the number of a part of it.
const partSuffix = "p"

// partOf returns the backup that a manifest is a part of; "" if it is a backup.
func partOf(id chunkstore.ID) ID {
	const idLength = len("20060102t150405z") + 4
	if len(id) > idLength && strings.HasPrefix(string(id[idLength:]), partSuffix) {
		return ID(id[:idLength])
	}
	return ""
}

// List returns the complete backups, oldest first.
func (r *Repository) List(ctx context.Context) ([]Backup, error) {
	ids, err := r.chunks.List(ctx, tenant)
	if err != nil {
		return nil, err
	}
	all := []Backup{}
	for _, id := range ids {
		if partOf(id) != "" {
			continue
		}
		m, err := r.chunks.Open(ctx, tenant, id)
		if errors.Is(err, chunkstore.ErrNotFound) { // deleted meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		d, err := describe(m)
		if errors.Is(err, ErrNewer) {
			all = append(all, Backup{ID: ID(id), Created: m.Created, Release: "newer"})
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, d.backup(ID(id)))
	}
	slices.SortFunc(all, func(a, b Backup) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// open reads a backup with all its manifests. The id "latest" is the newest backup.
func (r *Repository) open(ctx context.Context, id ID) (*opened, error) {
	if id == "latest" {
		all, err := r.List(ctx)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("backup latest: %w", ErrNotFound)
		}
		id = all[len(all)-1].ID
	}
	if id == "" || len(id) > 64 || strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyz0123456789") != "" ||
		partOf(chunkstore.ID(id)) != "" {
		return nil, fmt.Errorf("backup %q: %w", string(id), ErrNotFound)
	}
	root, err := r.chunks.Open(ctx, tenant, chunkstore.ID(id))
	if errors.Is(err, chunkstore.ErrNotFound) {
		return nil, fmt.Errorf("backup %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("backup %s: %w", id, err)
	}
	d, err := describe(root)
	if err != nil {
		return nil, err
	}
	if d.Schema > store.Schema() {
		return nil, fmt.Errorf("backup %s (release %q, schema %d; this program knows %d): %w", id, d.Release, d.Schema,
			store.Schema(), ErrNewer)
	}
	o := &opened{id: id, d: d, root: root}
	for _, part := range d.Parts {
		m, err := r.chunks.Open(ctx, tenant, part)
		if err != nil {
			return nil, fmt.Errorf("backup %s: %w", id, err)
		}
		o.parts = append(o.parts, m)
	}
	if o.entries, err = r.readIndex(ctx, o); err != nil {
		return nil, fmt.Errorf("backup %s: %w", id, err)
	}
	return o, nil
}

// opened is a backup that was read, except for its content.
type opened struct {
	id      ID
	d       *description
	root    *chunkstore.Manifest
	parts   []*chunkstore.Manifest
	entries []entry
}

// readIndex reads the index of a backup and checks it against the manifests.
func (r *Repository) readIndex(ctx context.Context, o *opened) ([]entry, error) {
	f, ok := o.root.File(indexFile)
	if !ok || f.Bytes > maxIndex {
		return nil, fmt.Errorf("%s of %d bytes: %w", indexFile, f.Bytes, chunkstore.ErrVersion)
	}
	data := make([]byte, f.Bytes)
	err := r.chunks.Reader(o.root, nil).Scan(ctx, indexFile, nil, func(off int64, part []byte) (bool, error) {
		copy(data[off:], part) // calls are for parts that do not overlap
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return decodeIndex(data, o.parts)
}

// Verify reads everything that a backup consists of, and checks that it is what was stored. It writes nothing. The
// error names the first object that is missing or damaged.
func (r *Repository) Verify(ctx context.Context, id ID) (Backup, error) {
	o, err := r.open(ctx, id)
	if err != nil {
		return Backup{}, err
	}
	for _, m := range append(slices.Clone(o.parts), o.root) {
		reader := r.chunks.Reader(m, nil)
		for _, f := range m.Files {
			err := reader.Scan(ctx, f.Name, nil, func(int64, []byte) (bool, error) { return false, nil })
			if err != nil {
				return Backup{}, fmt.Errorf("backup %s: %w", o.id, err)
			}
		}
	}
	return o.d.backup(o.id), nil
}

// Delete removes a backup. What no other backup needs is removed by a later Clean.
func (r *Repository) Delete(ctx context.Context, id ID) error {
	o, err := r.open(ctx, id)
	if err != nil {
		return err
	}
	return r.remove(ctx, o.id)
}

// remove removes a backup and its parts: what makes it complete first.
func (r *Repository) remove(ctx context.Context, id ID) error {
	if err := r.chunks.Delete(ctx, tenant, chunkstore.ID(id)); err != nil {
		return err
	}
	ids, err := r.chunks.List(ctx, tenant)
	if err != nil {
		return err
	}
	for _, part := range ids {
		if partOf(part) == id {
			if err := r.chunks.Delete(ctx, tenant, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// abandoned is the age at which a part without a backup belongs to no attempt that is under way: package chunkstore
// ends a push after 36 hours.
const abandoned = 48 * time.Hour

// Clean removes all but the newest keep backups of a host; with keep 0 it removes none.
// It also removes what earlier attempts left, and content that no backup has used for three days.
func (r *Repository) Clean(ctx context.Context, host string, keep int) (removed []ID, err error) {
	all, err := r.List(ctx)
	if err != nil {
		return nil, err
	}
	complete, own := map[ID]bool{}, []ID{}
	for _, b := range all {
		complete[b.ID] = true
		if b.Host == host {
			own = append(own, b.ID)
		}
	}
	if keep > 0 && len(own) > keep {
		removed = own[:len(own)-keep]
	}
	ids, err := r.chunks.List(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		of := partOf(id)
		if of == "" || complete[of] {
			continue
		}
		began, err := time.Parse("20060102t150405z", strings.ToLower(string(of[:16])))
		if err == nil && time.Since(began) > abandoned {
			if err := r.chunks.Delete(ctx, tenant, id); err != nil {
				return nil, err
			}
		}
	}
	for _, id := range removed {
		if err := r.remove(ctx, id); err != nil {
			return nil, err
		}
	}
	_, err = r.chunks.GC(ctx)
	return removed, err
}
