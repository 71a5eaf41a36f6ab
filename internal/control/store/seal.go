package store

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
)

// KeyBytes is the length of Config.Key.
const KeyBytes = 32

// SecretPrefix begins the names of secret metadata. Their values are stored encrypted, are never
// shown, and cannot be searched for.
const SecretPrefix = "secret."

// WrongKeyError reports that the store was written with another key.
type WrongKeyError struct{}

// Error implements error.
func (*WrongKeyError) Error() string {
	return "the store is encrypted with another key: restore the key file that belongs to it from your backup"
}

// sealedPrefix begins a value that is encrypted: AES-256-GCM with a random nonce, which precedes the ciphertext in
// base64. The table, the column and the key of the row are authenticated, so that a value cannot be moved to another
// row.
const sealedPrefix = "sealed:1:"

// sealer encrypts and decrypts values of columns. A nil *sealer stores values as they are.
type sealer struct{ aead cipher.AEAD }

// newSealer returns a sealer with a key derived from key, or nil if key is empty.
func newSealer(key []byte) (*sealer, error) {
	if len(key) == 0 {
		return nil, nil
	}
	if len(key) != KeyBytes {
		return nil, fmt.Errorf("the key has %d bytes, want %d", len(key), KeyBytes)
	}
	derived, err := hkdf.Key(sha256.New, key, nil, "pandastack store 1", KeyBytes)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &sealer{aead}, nil
}

func (s *sealer) seal(place, plain string) string {
	if s == nil || plain == "" {
		return plain
	}
	nonce := make([]byte, s.aead.NonceSize(), s.aead.NonceSize()+len(plain)+s.aead.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return sealedPrefix + base64.RawStdEncoding.EncodeToString(s.aead.Seal(nonce, nonce, []byte(plain), []byte(place)))
}

// open returns the plain text of a value. A value that was never sealed is plain.
func (s *sealer) open(place, value string) (string, error) {
	encoded, ok := strings.CutPrefix(value, sealedPrefix)
	if !ok {
		return value, nil
	}
	if s == nil {
		return "", &WrongKeyError{}
	}
	data, err := base64.RawStdEncoding.DecodeString(encoded)
	if err != nil || len(data) < s.aead.NonceSize() {
		return "", fmt.Errorf("%s is damaged", place)
	}
	plain, err := s.aead.Open(nil, data[:s.aead.NonceSize()], data[s.aead.NonceSize():], []byte(place))
	if err != nil {
		return "", fmt.Errorf("%s cannot be decrypted: %w", place, &WrongKeyError{})
	}
	return string(plain), nil
}

// sealedPairs is the name under which Pairs hold the value of a column that is sealed as a whole.
const sealedPairs = "\x00sealed"

// visitor is called with the columns of a row that hold secrets.
type visitor struct {
	text   func(column string, value *string) error
	pairs  func(column string, value *Pairs) error // secret as a whole
	values func(column string, value *Pairs) error // only names with SecretPrefix are secret
}

// secretRow is a row with columns that are stored sealed.
type secretRow[T any] interface {
	*T
	place() string // table and key
	visit(v visitor) error
}

func (s *Sandbox) place() string   { return "sandboxes/" + s.ID }
func (s *Snapshot) place() string  { return "snapshots/" + s.ID }
func (s *Tombstone) place() string { return "tombstones/" + s.Sandbox }
func (v *Version) place() string   { return "versions/" + v.ID }
func (b *Build) place() string     { return "builds/" + b.ID }
func (j *Job) place() string       { return "jobs/" + j.ID }

func (s *Sandbox) visit(v visitor) error {
	return errors.Join(
		v.pairs("env", &s.Env), v.text("surroundings", &s.Injected), v.values("metadata", &s.Metadata))
}

func (s *Snapshot) visit(v visitor) error {
	return errors.Join(
		v.pairs("env", &s.Env), v.text("surroundings", &s.Injected), v.values("metadata", &s.Metadata))
}

func (s *Tombstone) visit(v visitor) error { return v.values("metadata", &s.Metadata) }
func (v *Version) visit(f visitor) error   { return f.pairs("env", &v.Env) }
func (b *Build) visit(v visitor) error     { return v.text("spec", &b.Spec) }
func (j *Job) visit(v visitor) error       { return v.text("payload", &j.Payload) }

// sealed returns a copy of a row for writing, with its secrets sealed.
func sealed[T any, P secretRow[T]](t *Tx, row P) (P, error) {
	out := *row
	p := P(&out)
	s, place := t.sealer, p.place()
	if s == nil {
		return p, nil
	}
	return p, p.visit(visitor{
		text: func(column string, value *string) error {
			*value = s.seal(place+"/"+column, *value)
			return nil
		},
		pairs: func(column string, value *Pairs) error {
			if len(*value) == 0 {
				return nil
			}
			data, err := json.Marshal(map[string]string(*value))
			*value = Pairs{sealedPairs: s.seal(place+"/"+column, string(data))}
			return err
		},
		values: func(column string, value *Pairs) error {
			out := maps.Clone(*value)
			for name, plain := range out {
				if strings.HasPrefix(name, SecretPrefix) {
					out[name] = s.seal(place+"/"+column+"/"+name, plain)
				}
			}
			*value = out
			return nil
		},
	})
}

// opened decrypts the secrets of rows that were read.
func opened[T any, P secretRow[T]](t *Tx, rows ...P) error {
	var all error
	for _, row := range rows {
		s, place := t.sealer, row.place()
		all = errors.Join(all, row.visit(visitor{
			text: func(column string, value *string) (err error) {
				*value, err = s.open(place+"/"+column, *value)
				return err
			},
			pairs: func(column string, value *Pairs) error {
				found, ok := (*value)[sealedPairs]
				if !ok {
					return nil
				}
				plain, err := s.open(place+"/"+column, found)
				if err != nil {
					return err
				}
				*value = nil
				return json.Unmarshal([]byte(plain), (*map[string]string)(value))
			},
			values: func(column string, value *Pairs) error {
				for name, found := range *value {
					if !strings.HasPrefix(name, SecretPrefix) {
						continue
					}
					plain, err := s.open(place+"/"+column+"/"+name, found)
					if err != nil {
						return err
					}
					(*value)[name] = plain
				}
				return nil
			},
		}))
	}
	return all
}

// openedList is opened for the rows of a list.
func openedList[T any, P secretRow[T]](t *Tx, rows []T, err error) ([]T, error) {
	if err != nil {
		return rows, err
	}
	for i := range rows {
		if err := opened[T, P](t, P(&rows[i])); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// checkName is the name of a setting with a sealed value, which only the right key opens.
const checkName = "sealed"

// sealExisting checks that the store was written with this key. A store that was written without a key is sealed; its
// file is then rewritten, so that no plain text stays in unused pages.
func (d *DB) sealExisting(ctx context.Context) error {
	found, err := d.Read().Setting(ctx, checkName)
	if err == nil {
		_, err := d.sealer.open("settings/"+checkName, found)
		return err
	}
	if !errors.Is(err, ErrNotFound) || d.sealer == nil {
		return ignoreNotFound(err)
	}
	if err := d.Write(ctx, "seal", sealAll); err != nil {
		return err
	}
	if d.postgres {
		return nil
	}
	_, err = d.write.ExecContext(ctx, "VACUUM")
	return err
}

func ignoreNotFound(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// sealAll writes every row with secrets again.
func sealAll(ctx context.Context, tx *Tx) error {
	if err := errors.Join(
		sealTable[Sandbox](ctx, tx, "env", "surroundings", "metadata"),
		sealTable[Snapshot](ctx, tx, "env", "surroundings", "metadata"),
		sealTable[Tombstone](ctx, tx, "metadata"),
		sealTable[Version](ctx, tx, "env"),
		sealTable[Build](ctx, tx, "spec"),
		sealTable[Job](ctx, tx, "payload"),
		sealTable[Database](ctx, tx, "password", "verifier", "broker_token"),
		sealTable[DatabaseRole](ctx, tx, "verifier"),
	); err != nil {
		return err
	}
	if _, err := tx.db.NewDelete().Model((*label)(nil)).Where("name LIKE ?", SecretPrefix+"%").Exec(ctx); err != nil {
		return err
	}
	return tx.PutSetting(ctx, checkName, tx.sealer.seal("settings/"+checkName, "1"))
}

func sealTable[T any, P secretRow[T]](ctx context.Context, tx *Tx, columns ...string) error {
	var rows []T
	if err := tx.db.NewSelect().Model(&rows).Scan(ctx); err != nil {
		return err
	}
	for i := range rows {
		row, err := sealed[T, P](tx, P(&rows[i]))
		if err != nil {
			return err
		}
		if _, err := tx.db.NewUpdate().Model(row).WherePK().Column(columns...).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}
