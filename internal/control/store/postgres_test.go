package store_test

import (
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
)

func TestPostgres(t *testing.T) {
	address := storetest.Postgres(t)
	storetest.Run(t, func(t *testing.T) *store.DB { return open(t, address(t)) })
}
