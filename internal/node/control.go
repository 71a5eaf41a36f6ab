package node

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/metricshistory"
	"github.com/pandastack/pandastack/internal/control/preview"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/schedule"
	"github.com/pandastack/pandastack/internal/control/sshkey"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/control/volume"
	"github.com/pandastack/pandastack/internal/control/volume/helper"
	"github.com/pandastack/pandastack/internal/control/workspace"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/bodyrate"
	"github.com/pandastack/pandastack/internal/ingress/e2b"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/scheduleapi"
	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/ingress/repl"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// control creates the control plane of a host, the handler of its APIs, and the edge of its databases, which is nil if
// there are none. first is the first API key of a new node.
func (n *node) control(
	ctx context.Context,
	host hostapi.Host,
) (handler http.Handler, edge *pgedge.Server, first string, err error) {
	secret, err := n.secret()
	if err != nil {
		return nil, nil, "", err
	}
	core, err := n.core(ctx, host, secret)
	if err != nil {
		return nil, nil, "", err
	}
	db, boxes, templates, quotas, jobs := core.db, core.boxes, core.templates, core.quotas, core.jobs
	volumes, err := n.volumes(volume.Deps{
		Store: db, Host: host, Sandboxes: boxes, Helpers: core.helpers, Jobs: jobs, Quotas: quotas, Log: n.Log,
	})
	if err != nil {
		return nil, nil, "", err
	}
	builds, err := n.builds(ctx, build.Deps{
		Store: db, Jobs: jobs, Host: host, Templates: templates, Sandboxes: boxes, Quotas: quotas, Log: n.Log,
	})
	if err != nil {
		return nil, nil, "", err
	}
	workspaces, err := workspace.New(workspace.Deps{
		Store: db, Quotas: quotas, Keys: core.keys, Sandboxes: boxes, Builds: builds, Log: n.Log,
	})
	if err != nil {
		return nil, nil, "", err
	}
	log, err := n.auditLog(db, core.registry)
	if err != nil {
		return nil, nil, "", err
	}
	previews, err := preview.New(db, n.Log)
	if err != nil {
		return nil, nil, "", err
	}
	past := metricshistory.New(boxes)
	called, err := n.functions(ctx, functionDeps{db, boxes, templates, quotas}, jobs)
	if err != nil {
		return nil, nil, "", err
	}
	dbs, err := n.databases(ctx, database.Deps{
		Store: db, Sandboxes: boxes, Volumes: volumes, Templates: templates, Quotas: quotas, Log: n.Log,
	}, boxes, log, secret)
	if err != nil {
		return nil, nil, "", err
	}
	served, err := n.apps(ctx, appDeps{db, boxes, volumes, dbs.service, templates, builds, quotas, n.Log})
	if err != nil {
		return nil, nil, "", err
	}
	schedules, err := n.schedules(schedule.Deps{
		Store: db, Jobs: jobs, Sandboxes: boxes, Templates: templates, Quotas: quotas, Log: n.Log,
		Functions: called.jobs, Apps: served.service,
	})
	if err != nil {
		return nil, nil, "", err
	}
	sshKeys, err := sshkey.New(core.db)
	if err != nil {
		return nil, nil, "", err
	}
	all := &services{
		boxes, volumes, templates, builds, workspaces, workspace.Keys{Keys: core.keys, Quotas: quotas}, previews,
		log, past, dbs, served, called, schedules, sshKeys, sshGateway{}, core.registry, secret,
	}
	handler, err = n.handler(ctx, all)
	if err != nil {
		return nil, nil, "", err
	}
	first, err = n.begin(ctx, core.keys, boxes, []loop{
		{"audit log", log.Run}, {"keys", core.keys.Run}, {"sandboxes", boxes.Run}, {"volumes", volumes.Run},
		{"files of volumes", core.helpers.Run}, {"jobs", jobs.Run}, {"builds", builds.Run}, {"history", past.Run},
		{"schedules", schedules.Run},
	})
	if err != nil {
		return nil, nil, "", err
	}
	dbs.run(ctx, n)
	all.apps.run(ctx, n)
	all.functions.run(ctx, n)
	all.ssh.run(ctx, n)
	return handler, dbs.edge, first, nil
}

// loop is the main loop of a component.
type loop struct {
	name string
	run  func(context.Context) error
}

// begin runs the components of the control plane. first is the first API key of a new node.
func (n *node) begin(
	ctx context.Context,
	keys *auth.Keys,
	boxes *sandbox.Service,
	loops []loop,
) (first string, err error) {
	if first, err = keys.CreateFirst(ctx); err != nil {
		return "", fmt.Errorf("first key: %w", err)
	}
	// The control plane must know before the first request which machines the host adopted, and which ones the
	// previous node hibernated when it stopped.
	if err := boxes.Reconcile(ctx); err != nil {
		return "", fmt.Errorf("reconcile sandboxes with the host: %w", err)
	}
	for _, l := range loops {
		n.run(ctx, l.name, l.run)
	}
	return first, nil
}

// core is what every service of the control plane is built on.
type core struct {
	db        *store.DB
	keys      *auth.Keys
	registry  *prometheus.Registry
	quotas    *quota.Quotas
	templates *template.Service
	helpers   *helper.Helpers
	boxes     *sandbox.Service
	jobs      *job.Queue
}

// core creates the core of the control plane of a host.
func (n *node) core(ctx context.Context, host hostapi.Host, secret []byte) (c core, err error) {
	if c.db, err = n.openStore(ctx, secret); err != nil {
		return c, err
	}
	if c.keys, err = auth.New(c.db, n.Log); err != nil {
		return c, err
	}
	aliases, err := n.aliases()
	if err != nil {
		return c, err
	}
	var observe func(verb string, code api.Code, took time.Duration)
	if c.registry, observe, err = n.metrics(host); err != nil {
		return c, err
	}
	if c.quotas, err = n.quotas(c.db, c.registry); err != nil {
		return c, err
	}
	if c.templates, err = template.New(host, c.db, aliases, c.quotas); err != nil {
		return c, err
	}
	if c.helpers, err = n.helpers(c.db, host); err != nil {
		return c, err
	}
	c.boxes, err = sandbox.New(n.sandboxConfig(), sandbox.Deps{
		Store: c.db, Host: host, Templates: c.templates, Quotas: c.quotas, Volumes: c.helpers, Observe: observe,
		Log: n.Log, Budgets: n.shares.guests(),
	})
	if err != nil {
		return c, err
	}
	c.jobs, err = job.New(job.Config{Exclusive: !c.db.Shared()}, c.db, n.Log)
	return c, err
}

// openStore opens the store of the control plane until the node stops.
func (n *node) openStore(ctx context.Context, secret []byte) (*store.DB, error) {
	db, err := store.Open(ctx, store.Config{
		DSN: n.path("control.db"), Key: derive(secret, "store"), MakeSpace: n.makeSpace,
	})
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	n.undo.Push("close database", func(context.Context) error { return db.Close() })
	return db, nil
}

// auditLog creates the audit log, with a metric of what it has dropped.
func (n *node) auditLog(db *store.DB, registry *prometheus.Registry) (*audit.Log, error) {
	set := n.Config.Audit
	log, err := audit.New(audit.Config{Rate: set.Rate, Retention: set.Retention, MaxEntries: set.MaxEntries}, db, n.Log)
	if err != nil {
		return nil, err
	}
	return log, registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "pandastack_audit_dropped_total",
		Help: "Entries of the audit log that were dropped because there were too many.",
	}, func() float64 { return float64(log.Dropped()) }))
}

func (n *node) sandboxConfig() sandbox.Config {
	cfg, set := sandbox.Defaults(), n.Config.Sandbox
	cfg.DefaultTemplate, cfg.DefaultTTL = set.Template, set.TTL
	cfg.IdleHibernate, cfg.TombstoneRetention = set.IdleHibernate, set.TombstoneRetention
	return cfg
}

// schedules creates the service for schedules.
func (n *node) schedules(deps schedule.Deps) (*schedule.Service, error) {
	set := n.Config.Schedules
	allowed, err := set.Allowed()
	if err != nil {
		return nil, err
	}
	return schedule.New(schedule.Config{
		Concurrency: set.Parallel, PerWorkspace: set.PerWorkspace, Networks: allowed,
	}, deps)
}

// volumes creates the service for volumes.
func (n *node) volumes(deps volume.Deps) (*volume.Service, error) {
	set := n.Config.Volume
	return volume.New(volume.Config{SizeMiB: set.SizeMiB, Oversubscription: set.Oversubscription}, deps)
}

// helpers creates the hidden machines through which files of volumes are used.
func (n *node) helpers(db *store.DB, host hostapi.Host) (*helper.Helpers, error) {
	set := n.Config.Volume
	return helper.New(helper.Config{
		Template: hostapi.TemplateName(set.HelperTemplate), Idle: set.HelperIdle, PerWorkspace: set.Helpers,
	}, db, host, n.Log)
}

// services are the parts of the control plane that the APIs use.
type services struct {
	sandboxes  *sandbox.Service
	volumes    *volume.Service
	templates  *template.Service
	builds     *build.Service
	workspaces *workspace.Service
	keys       workspace.Keys
	previews   *preview.Previews
	log        *audit.Log
	history    *metricshistory.History
	databases  databases
	apps       apps
	functions  functions
	schedules  *schedule.Service
	sshKeys    *sshkey.Keys
	ssh        sshGateway
	registry   *prometheus.Registry
	secret     []byte
}

// handler creates the handler of all requests: apps and sandbox ports by host name, E2B's API, and /v1. It sets the
// edge of apps and the SSH gateway.
func (n *node) handler(ctx context.Context, f *services) (http.Handler, error) {
	runner := &repl.Runner{MaxContexts: n.Config.Limits.Contexts}
	previewKey := derive(f.secret, "preview")
	limits := n.Config.RateLimit
	var door *access.Door
	if limits.MaxWait > 0 {
		door = access.NewDoor(access.DoorConfig{MaxWait: limits.MaxWait})
		if err := f.registry.Register(door); err != nil {
			return nil, err
		}
	}
	guard := access.New(access.Config{
		KeyRate: limits.Key, AddressRate: limits.Address, FailuresPerMinute: limits.FailuresPerMinute,
		RecordFileReads: n.Config.Audit.FileReads, Door: door,
	}, f.keys, f.log)
	e2bAPI, err := e2b.New(
		e2b.Config{
			Domain: n.sandboxDomain(), Builds: f.builds, Secret: derive(f.secret, "agent"), History: f.history,
			Guard:   guard,
			Volumes: f.volumes,
			Budgets: envd.Budgets{Memory: n.shares.memory, Watchers: n.shares.watchers},
			Log:     n.Log,
		},
		f.sandboxes, f.templates, f.keys, runner,
	)
	if err != nil {
		return nil, err
	}
	n.undo.Push("close the E2B API", func(context.Context) error { e2bAPI.Close(); return nil })
	rules := e2bAPI.SandboxConfig(previewKey)
	rules.Previews = f.previews
	rules.Opened = func(r *http.Request, v proxy.Preview) {
		f.log.RecordUse(r.Context(), audit.Entry{
			Principal: auth.Principal{Workspace: api.Workspace(v.Workspace), KeyPrefix: "preview"},
			Action:    "open preview " + v.ID,
			Target:    v.Sandbox, Outcome: "ok", Remote: access.AddressOf(r).String(),
		})
	}
	ports := proxy.New(proxy.Config{
		Resolver:    proxy.NewSandboxResolver(f.sandboxes, rules),
		Limits:      access.NewPortLimits(access.PortConfig{PortRate: limits.Port, AddressRate: limits.PortAddress}),
		HideHeaders: e2b.HiddenHeaders(),
		IsKey:       e2b.IsKey,
		Log:         n.Log,
	})
	n.functionEdge(&f.functions, guard)
	n.undo.Push("close connections to sandboxes", func(context.Context) error { ports.Close(); return nil })
	if err := n.appEdge(ctx, &f.apps, ports, f.registry); err != nil {
		return nil, err
	}
	if f.ssh, err = n.sshGateway(f, guard); err != nil {
		return nil, err
	}
	v1, err := httpapi.New(
		httpapi.Config{
			Version: n.Version, PublicURL: n.Config.PublicURL, PreviewKey: previewKey,
			PreviewDomain: n.Config.Preview.Domain,
		},
		httpapi.Deps{
			Sandboxes:    f.sandboxes,
			Volumes:      f.volumes,
			Databases:    f.databases.api(),
			Apps:         f.apps.api(),
			Functions:    f.functions.api(),
			Schedules:    scheduleapi.API{Schedules: f.schedules},
			SSH:          f.ssh.api,
			Templates:    f.templates,
			Builds:       f.builds,
			Workspaces:   f.workspaces,
			Keys:         f.keys,
			Proxy:        ports,
			Previews:     f.previews,
			Cells:        runner,
			Audit:        f.log,
			Guard:        guard,
			UsageHistory: f.history,
			Metrics:      f.registry,
			Memory:       n.shares.memory,
			Log:          n.Log,
		},
	)
	if err != nil {
		return nil, err
	}
	networks, err := n.Config.TrustedProxies.Prefixes()
	if err != nil {
		return nil, err
	}
	proxies := access.Proxies{Networks: networks, Header: n.Config.TrustedProxies.Header}
	sources, err := n.serveAppSources(f.apps.sources, guard, e2bAPI.Middleware(v1))
	if err != nil {
		return nil, err
	}
	inner := f.apps.middleware(n, f.functions.edge.Middleware(ports.Middleware(sources)))
	limited := proxy.LimitHeaders(f.databases.middleware(inner))
	return bodyrate.Handler(proxies.Middleware(limited)), nil
}

// sandboxDomain returns the domain to which clients of E2B's protocol prepend the labels of ports. It has a port unless
// that is the default.
func (n *node) sandboxDomain() string {
	domain, port := n.Config.Preview.Domain, ""
	if u, err := url.Parse(n.Config.PublicURL); err == nil && u.Host != "" {
		port = u.Port()
		if domain == "" {
			domain = u.Hostname()
		}
	}
	if domain == "" {
		domain = "localhost"
	}
	if _, _, err := net.SplitHostPort(domain); err != nil && port != "" {
		return net.JoinHostPort(domain, port)
	}
	return domain
}

// secretBytes is the length of the secret of an installation.
const secretBytes = 32

// secret returns the secret that all tokens of this installation derive from. The first call creates it.
func (n *node) secret() ([]byte, error) {
	path := n.path("secret")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data = make([]byte, secretBytes)
		if _, err := rand.Read(data); err != nil {
			return nil, err
		}
		return data, durable.WriteFile(path, data, 0o600)
	}
	if err == nil && len(data) != secretBytes {
		err = fmt.Errorf(
			"%s has %d bytes, want %d; restore it from a backup: control.db cannot be decrypted without it",
			path,
			len(data),
			secretBytes,
		)
	}
	return data, err
}

// derive returns the key for one purpose.
func derive(secret []byte, purpose string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}
