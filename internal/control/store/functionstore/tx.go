package functionstore

import (
	"github.com/uptrace/bun"

	"github.com/pandastack/pandastack/internal/control/store"
)

// Tx reads and writes rows of functions. Make it with In.
type Tx struct {
	tx *store.Tx
	db bun.IDB
}

// In returns the rows of functions in a transaction.
func In(tx *store.Tx) Tx { return Tx{tx: tx, db: tx.DB()} }

// secret is a column that is stored sealed.
type secret struct {
	column string
	value  *string
}

// secretRow is a row with columns that are stored sealed.
type secretRow[T any] interface {
	*T
	place() string // table and key
	secrets() []secret
}

// sealed returns a copy of a row for writing, with its secrets sealed.
func sealed[T any, P secretRow[T]](t Tx, row P) P {
	out := *row
	p := P(&out)
	for _, s := range p.secrets() {
		*s.value = t.tx.Seal(p.place()+"/"+s.column, *s.value)
	}
	return p
}

// opened decrypts the secrets of a row that was read.
func opened[T any, P secretRow[T]](t Tx, row P) (err error) {
	for _, s := range row.secrets() {
		if *s.value, err = t.tx.Open(row.place()+"/"+s.column, *s.value); err != nil {
			return err
		}
	}
	return nil
}

// openedList is opened for the rows of a list.
func openedList[T any, P secretRow[T]](t Tx, rows []T, err error) ([]T, error) {
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
