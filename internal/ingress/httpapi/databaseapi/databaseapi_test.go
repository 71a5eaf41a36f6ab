package databaseapi_test

import (
	"context"
	"errors"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/databaseapi"
)

const detail = "dial unix /var/lib/pandastack/machines/sbx1/vsock: connection refused"

func failure() error {
	cause := errors.New(detail)
	return api.Wrap(api.Unavailable, cause, "the server did not answer: "+cause.Error())
}

// broken is a service whose calls fail for a reason that has details of the host. Those that it lacks go through On, as
// Get does.
type broken struct{ databaseapi.Databases }

func (broken) Create(context.Context, auth.Principal, api.CreateDatabaseRequest) (api.Database, error) {
	return api.Database{}, failure()
}

func (broken) List(context.Context, auth.Principal) ([]api.Database, error) { return nil, failure() }

func (broken) Get(context.Context, auth.Principal, api.DatabaseID) (api.Database, error) {
	return api.Database{}, failure()
}

func (broken) Delete(context.Context, auth.Principal, api.DatabaseID) error { return failure() }

func (broken) Connection(context.Context, auth.Principal, api.DatabaseID) (api.DatabaseConnection, error) {
	return api.DatabaseConnection{}, failure()
}

func (broken) Wake(context.Context, auth.Principal, api.DatabaseID) (api.DatabaseAccepted, error) {
	return api.DatabaseAccepted{}, failure()
}

func (broken) Backups(context.Context, auth.Principal, api.DatabaseID) (api.DatabaseBackups, error) {
	return api.DatabaseBackups{}, failure()
}

func (broken) BackUp(context.Context, auth.Principal, api.DatabaseID) (api.DatabaseAccepted, error) {
	return api.DatabaseAccepted{}, failure()
}

func (broken) Rehearse(context.Context, auth.Principal, api.DatabaseID) (api.DatabaseRehearsal, error) {
	return api.DatabaseRehearsal{}, failure()
}

// unread is what reads servers, and fails in the same way.
type unread struct{}

func (unread) Stats(context.Context, auth.Principal, api.DatabaseID) (api.DatabaseStats, error) {
	return api.DatabaseStats{}, failure()
}

func (unread) Logs(context.Context, auth.Principal, api.DatabaseID, int) (api.DatabaseLogs, error) {
	return api.DatabaseLogs{}, failure()
}

func (unread) Metrics(context.Context, auth.Principal, api.DatabaseID, string, string) (api.DatabaseMetrics, error) {
	return api.DatabaseMetrics{}, failure()
}

func (unread) Insights(
	context.Context,
	auth.Principal,
	api.DatabaseID,
	api.InsightQuery,
) (api.DatabaseInsights, error) {
	return api.DatabaseInsights{}, failure()
}

// calls makes every call of the API on a database.
func calls(c databaseapi.Caller) map[string]error {
	a := databaseapi.API{Databases: broken{}, Insight: unread{}}
	_, on := a.On(context.Background(), c, databaseapi.Databases.Get)
	_, create := a.Create(context.Background(), c, api.CreateDatabaseRequest{})
	_, list := a.List(context.Background(), c)
	all := map[string]error{
		"On": on, "Create": create, "List": list, "Delete": a.Delete(context.Background(), c),
	}
	in := []reflect.Value{
		reflect.ValueOf(context.Background()), reflect.ValueOf(c), reflect.ValueOf(url.Values{}),
	}
	v := reflect.ValueOf(a)
	for i := range v.NumMethod() { // those of routes that only read or order something
		m := v.Method(i)
		if m.Type().NumIn() == len(in) && m.Type().In(2) == in[2].Type() {
			all[v.Type().Method(i).Name] = m.Call(in)[1].Interface().(error)
		}
	}
	return all
}

// Only who operates the node sees details of the host in the errors of calls on databases.
func TestErrorsWithDetailsOfTheHost(t *testing.T) {
	for _, operator := range []bool{false, true} {
		all := calls(databaseapi.Caller{
			Principal: auth.Principal{Workspace: "alice", Operator: operator}, Database: string(api.NewDatabaseID()),
		})
		if len(all) < 12 {
			t.Fatalf("%d calls were made, want those of all routes: %v", len(all), all)
		}
		for name, err := range all {
			if api.CodeOf(err) != api.Unavailable || strings.Contains(err.Error(), detail) != operator {
				t.Errorf("%s, operator %v: %v", name, operator, err)
			}
		}
	}
}
