package backup

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Adopter are the methods of *Keeper that Adoptions need.
type Adopter interface {
	// Describe replaces the description of a database in its archive, and Description reads it: ErrNoDescription
	// if there is none.
	Describe(ctx context.Context, id string, text []byte) error
	Description(ctx context.Context, id string) ([]byte, error)
	// Adopt takes the archive of a database from the node that has it. Holds returns ErrFenced if another node
	// has done that, as do Begin and Describe; Fenced says so without a request, while the backups run.
	Adopt(ctx context.Context, id string) error
	Holds(ctx context.Context, id string) error
	Fenced(id string) bool
}

// Adopted returns the error of a database that another node has.
func Adopted(id string) *api.Error {
	return api.Errorf(api.WrongState, "another node has adopted database %s, which goes on there: delete it here", id)
}

// Adoptions keeps the descriptions of the databases of a node, and knows which of them it has.
//
// All methods may be called concurrently.
type Adoptions struct {
	db       *store.DB
	backups  Adopter
	interval time.Duration

	mu    sync.Mutex
	known map[string]*known // by the id of the database; guarded by mu
}

// known is what this process knows of a database.
type known struct {
	holds     bool              // no other node had adopted it when it was first used
	fenced    bool              // another one had
	described [sha256.Size]byte // the description in its archive
	due       time.Time         // when that is compared again
}

// NewAdoptions returns adoptions that compares descriptions after an interval. Without backups it has nothing to do.
func NewAdoptions(db *store.DB, backups Adopter, interval time.Duration) *Adoptions {
	return &Adoptions{db: db, backups: backups, interval: interval, known: map[string]*known{}}
}

// with calls f with what is known of a database.
func (s *Adoptions) with(id string, f func(*known)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[id] == nil {
		s.known[id] = &known{}
	}
	f(s.known[id])
}

// Forget drops what is known of a database that does not run any more.
func (s *Adoptions) Forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, id)
}

// Due reports whether Describe may have something to do, or this node has lost a database.
func (s *Adoptions) Due(id string) (due bool) {
	if s.backups == nil {
		return false
	}
	s.with(id, func(k *known) { due = k.fenced || !time.Now().Before(k.due) })
	return due || s.backups.Fenced(id)
}

// Describe writes the description of a database into its archive, if that has another one.
//
// mib is the storage of its server. The error is ErrFenced for a database that another node has adopted.
func (s *Adoptions) Describe(ctx context.Context, row *store.Database, primary *store.DatabaseMember, mib int64) error {
	fenced := s.backups.Fenced(row.ID)
	s.with(row.ID, func(k *known) { fenced = fenced || k.fenced })
	if fenced {
		return ErrFenced
	}
	roles, err := s.db.Read().DatabaseRoles(ctx, row.ID)
	if err != nil {
		return err
	}
	text, err := Description{*row, roles, mib, primary.Timeline}.Encode()
	if err != nil {
		return err
	}
	sum, same := sha256.Sum256(text), false
	s.with(row.ID, func(k *known) { same = k.described == sum })
	if !same {
		if err := s.backups.Describe(ctx, row.ID, text); err != nil {
			return err
		}
	}
	s.with(row.ID, func(k *known) { k.described, k.due = sum, time.Now().Add(s.interval) })
	return nil
}

// Check refuses a database that another node has adopted.
//
// It is for the first use since this process began, or since the database was suspended.
func (s *Adoptions) Check(ctx context.Context, id string) error {
	if s.backups == nil {
		return nil
	}
	var holds bool
	s.with(id, func(k *known) { holds = k.holds })
	if holds {
		return nil
	}
	if err := s.backups.Holds(ctx, id); errors.Is(err, ErrFenced) {
		s.with(id, func(k *known) { k.fenced = true })
		return Adopted(id)
	} else if err != nil {
		return err
	}
	s.with(id, func(k *known) { k.holds = true })
	return nil
}

// Find reads the description of a database in the object store.
func (s *Adoptions) Find(ctx context.Context, id string) (Description, error) {
	text, err := s.backups.Description(ctx, id)
	if errors.Is(err, ErrNoDescription) {
		return Description{}, api.Errorf(api.NotFound, "id: the object store of this node has no database %s: "+
			"object_store.url and object_store.key are to be those of the node that had it", id).With("field", "id")
	}
	if err != nil {
		return Description{}, api.Wrap(api.Unavailable, err, "the description of the database cannot be read: "+
			err.Error())
	}
	d, err := ParseDescription(id, text)
	if err != nil {
		return d, api.Wrap(api.WrongState, err, err.Error())
	}
	return d, nil
}

// Plan returns the description of a database that this node can adopt.
func (s *Adoptions) Plan(ctx context.Context, id string) (Description, error) {
	if s.backups == nil {
		return Description{}, api.Errorf(api.Unsupported, "this server keeps no backups of databases")
	}
	if _, err := s.db.Read().Database(ctx, id); err == nil {
		return Description{}, api.Errorf(api.Conflict, "this node has database %s: delete it here first", id).
			With("database_id", id)
	} else if !errors.Is(err, store.ErrNotFound) {
		return Description{}, err
	}
	d, err := s.Find(ctx, id)
	if err != nil {
		return d, err
	}
	_, err = s.db.Read().Workspace(ctx, d.Database.Workspace)
	if errors.Is(err, store.ErrNotFound) {
		err = api.Errorf(api.PreconditionFailed, "database %s belongs to workspace %s, which this node does not have: "+
			"create it first", id, d.Database.Workspace)
	}
	return d, err
}

// Take fences off the node that has a database, and reads its description.
func (s *Adoptions) Take(ctx context.Context, id string) (Description, error) {
	if err := s.backups.Adopt(ctx, id); err != nil {
		return Description{}, api.Wrap(api.Unavailable, err, "the database cannot be fenced off: "+err.Error())
	}
	return s.Find(ctx, id)
}
