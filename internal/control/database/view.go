package database

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// List returns the databases of a workspace, newest first, without credentials.
func (s *Service) List(ctx context.Context, p auth.Principal) ([]api.Database, error) {
	if p.Workspace == "" {
		return nil, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := s.quotas.CheckActive(ctx, p.Workspace); err != nil {
		return nil, err
	}
	rows, err := s.db.Read().Databases(ctx, store.DatabaseQuery{Workspace: string(p.Workspace)})
	if err != nil {
		return nil, api.AsError(err)
	}
	all := []api.Database{}
	for i := range rows {
		if rows[i].State == store.DatabaseDeleting {
			continue
		}
		out, err := s.view(ctx, &rows[i])
		if err != nil {
			return nil, api.AsError(err)
		}
		out.Password, out.ConnectionURL, out.PoolerURL, out.BrokerToken = "", "", "", ""
		out.ReadOnlyURL, out.ReadOnlyPoolerURL = "", ""
		all = append(all, out)
	}
	return all, nil
}

// Get returns a database, with its credentials.
func (s *Service) Get(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.Database, error) {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	return s.show(ctx, &row)
}

// Connection returns how clients connect to a database.
func (s *Service) Connection(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
) (api.DatabaseConnection, error) {
	row, err := s.find(ctx, p, id)
	if err == nil {
		err = ready(&row)
	}
	if err != nil {
		return api.DatabaseConnection{}, api.AsError(err)
	}
	out := api.DatabaseConnection{
		ConnectionURL: s.connectionURL(&row, ""), PoolerURL: s.connectionURL(&row, "-pooler"),
		BrokerURL: s.brokerURL(&row), BrokerToken: row.BrokerToken,
	}
	if row.Replicas > 0 {
		out.ReadOnlyURL = s.connectionURL(&row, "-ro")
		out.ReadOnlyPoolerURL = s.connectionURL(&row, "-ro-pooler")
	}
	return out, nil
}

// show is view for callers of the API.
func (s *Service) show(ctx context.Context, row *store.Database) (api.Database, error) {
	out, err := s.view(ctx, row)
	if err != nil {
		return out, api.AsError(err)
	}
	return out, nil
}

// view returns a database as users see it.
func (s *Service) view(ctx context.Context, row *store.Database) (api.Database, error) {
	out := api.Database{
		ID: api.DatabaseID(row.ID), Template: row.Template, Label: row.Label, Size: api.DatabaseSize(row.Size),
		CreatedAt: float64(row.Created) / 1e6, AlwaysOn: row.AlwaysOn, ClonedFrom: api.DatabaseID(row.ClonedFrom),
		Error: row.Error, Durability: api.Durability(row.Durability), IdleSeconds: row.IdleSeconds,
		StorageMaxMB: int(row.StorageMaxMiB), Replicas: row.Replicas, Version: row.Version,
		SchemaOnly: row.SchemaOnly,
	}
	if err := s.viewFailover(ctx, row, &out); err != nil {
		return out, err
	}
	for text, to := range map[string]*[]string{row.Networks: &out.Networks, row.Extensions: &out.Extensions} {
		if text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(text), to); err != nil {
			return out, fmt.Errorf("database %s: %w", row.ID, err)
		}
	}
	if row.Expires > 0 {
		at := store.Time(row.Expires)
		out.ExpiresAt = &at
	}
	out.Status = api.DatabaseFailed
	switch row.State {
	case store.DatabaseCreating:
		out.Status = api.DatabaseProvisioning
	case store.DatabaseRestoring:
		out.Status = api.DatabaseRestoring
		s.viewConnection(row, &out)
		if err := viewUpgrade(row, &out); err != nil {
			return out, err
		}
	case store.DatabaseReady:
		if err := s.viewReady(ctx, row, &out); err != nil {
			return out, err
		}
	}
	return out, nil
}

// viewReady adds what only a database that is ready has.
func (s *Service) viewReady(ctx context.Context, row *store.Database, out *api.Database) error {
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return err
	}
	out.SandboxID = api.SandboxID(m.Sandbox)
	box, err := s.boxes.Get(ctx, as(row), out.SandboxID)
	switch code := api.CodeOf(err); {
	case code == api.NotFound || code == api.Gone:
		out.Error = api.Reason("its machine is lost: ", err)
	case err != nil:
		return err
	case box.Status == api.Running || box.Status == api.Paused || box.Status == api.Waking:
		out.Status = api.DatabaseRunning
	default: // the next connection wakes it
		out.Status = api.DatabaseHibernated
	}
	s.viewConnection(row, out)
	if row.Replicas > 0 {
		out.ReadOnlyURL = s.connectionURL(row, "-ro")
		out.ReadOnlyPoolerURL = s.connectionURL(row, "-ro-pooler")
	}
	return s.replicas.View(ctx, row, out)
}

// viewConnection adds how clients connect.
func (s *Service) viewConnection(row *store.Database, out *api.Database) {
	out.Host, out.Port = s.host(row, ""), s.cfg.Port
	out.Database, out.Username, out.Password = DatabaseName, RoleName, row.Password
	out.ConnectionURL, out.PoolerURL = s.connectionURL(row, ""), s.connectionURL(row, "-pooler")
	out.BrokerToken, out.BrokerURL, out.BrokerPort = row.BrokerToken, s.brokerURL(row), portOf(s.cfg.URL)
}

// host returns the host name of a server of a database.
func (s *Service) host(row *store.Database, target string) string {
	return row.ID + target + "." + s.cfg.Suffix
}

// connectionURL returns the URL of a server of a database. It lacks a password that was changed by SQL.
//
// Few resolvers know names below localhost (RFC 6761, 6.3), so that there the database is named in the options.
func (s *Service) connectionURL(row *store.Database, target string) string {
	host, query := s.host(row, target), url.Values{"sslmode": {"require"}}
	if strings.HasSuffix("."+s.cfg.Suffix, ".localhost") {
		host = "localhost"
		query.Set("options", "endpoint="+row.ID+target)
	}
	u := url.URL{
		Scheme: "postgresql", Host: net.JoinHostPort(host, strconv.Itoa(s.cfg.Port)),
		Path: "/" + DatabaseName, RawQuery: query.Encode(), User: url.User(RoleName),
	}
	if row.Password != "" {
		u.User = url.UserPassword(RoleName, row.Password)
	}
	return u.String()
}

func (s *Service) brokerURL(row *store.Database) string {
	return s.cfg.URL + "/v1/databases/" + row.ID + "/proxy"
}

// portOf returns the port of a URL.
func portOf(text string) int {
	u, err := url.Parse(text)
	if err != nil {
		return 0
	}
	if n, err := strconv.Atoi(u.Port()); err == nil {
		return n
	}
	if u.Scheme == "https" {
		return 443
	}
	return 80
}

// expiry returns when a database of a time to live ends; 0: never.
func expiry(seconds int64) int64 {
	if seconds <= 0 {
		return 0
	}
	return store.Micros(time.Now().Add(time.Duration(seconds) * time.Second))
}
