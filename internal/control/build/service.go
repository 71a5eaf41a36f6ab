package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/guestdial"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// Config configures a Service. Dir is required; zero fields mean the default.
type Config struct {
	Dir            string        // directory for contexts and uploads
	Parallel       int           // concurrent builds; 2
	PerWorkspace   int           // concurrent builds of one workspace; Parallel
	MaxAttempts    int           // attempts of a build whose process ends; 3
	StepTimeout    time.Duration // limit of one step; 30 min
	BuildTimeout   time.Duration // limit of one attempt of a build; 4 h
	MaxUploadBytes int64         // limit of one upload; 8 GiB
	MaxLayerBytes  int64         // limit of the layers of a workspace; as setting build.layers_gib
	KeepLayers     time.Duration // how long unused layers are kept; 14 days
	KeepBuilds     time.Duration // how long rows and logs of ended builds are kept; 30 days
	KeepInputs     time.Duration // how long inputs of ended builds are kept for a retry; 2 days
	OrphanGrace    time.Duration // how long a resource of the host without an owner is kept; 1 min
	GCInterval     time.Duration // interval of garbage collection; 1 min
	VCPUs          int           // processors of the machines in which images are built; 1
	MemoryMiB      int           // memory of these machines; 1024
	// OnStep, for tests, is called after every internal step of a build; an error fails the build there.
	OnStep func(step string) error
}

func (c Config) withDefaults() Config {
	c.Parallel = cmp.Or(c.Parallel, 2)
	c.PerWorkspace = cmp.Or(c.PerWorkspace, c.Parallel)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 3)
	c.StepTimeout = cmp.Or(c.StepTimeout, 30*time.Minute)
	c.BuildTimeout = cmp.Or(c.BuildTimeout, 4*time.Hour)
	c.MaxUploadBytes = cmp.Or(c.MaxUploadBytes, 8<<30)
	c.MaxLayerBytes = cmp.Or(c.MaxLayerBytes, int64(config.Default().Build.LayersGiB)<<30)
	c.KeepLayers = cmp.Or(c.KeepLayers, 14*24*time.Hour)
	c.KeepBuilds = cmp.Or(c.KeepBuilds, 30*24*time.Hour)
	c.KeepInputs = cmp.Or(c.KeepInputs, 2*24*time.Hour)
	c.OrphanGrace = cmp.Or(c.OrphanGrace, time.Minute)
	c.GCInterval = cmp.Or(c.GCInterval, time.Minute)
	c.VCPUs = cmp.Or(c.VCPUs, 1)
	c.MemoryMiB = cmp.Or(c.MemoryMiB, 1024)
	return c
}

// Templates is the part of template.Service that builds use.
type Templates interface {
	Resolve(ctx context.Context, p auth.Principal, name string) (api.Template, error)
	Claim(ctx context.Context, p auth.Principal, name string, global bool) (store.Template, bool, error)
	Forget(ctx context.Context, id string) error
	Add(ctx context.Context, tx *store.Tx, v store.Version, tags []string) ([]store.Version, error)
	Drop(ctx context.Context, versions []store.Version) error
}

// Sandboxes is the part of sandbox.Service that builds use.
type Sandboxes interface {
	Snapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) (api.Snapshot, error)
	TakeSnapshot(ctx context.Context, p auth.Principal, id api.SandboxID, req api.SnapshotRequest) (api.Snapshot, error)
	DeleteSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) error
}

// Image is an OCI image that a registry has resolved.
type Image struct {
	Digest string // digest of the manifest for this platform
	Bytes  int64  // compressed size of its layers
	Base   dockerfile.Base
	// Flatten writes the root file system of the image as a tar stream. It calls take before it writes bytes of layers
	// to the disk; an error of take ends it. These bytes are in use until Flatten returns.
	Flatten func(ctx context.Context, w io.Writer, take func(bytes int64) error) error
}

// Registry finds images. Errors that the reference or the registry causes are *api.Error.
type Registry interface {
	// Find resolves a reference. The credentials go to the server that they name, and to no other.
	Find(ctx context.Context, ref string, who *api.RegistryAuth) (Image, error)
	// Server returns the host of the registry of a reference.
	Server(ref string) (string, error)
}

// Deps are the components that a Service uses. All but Registry and Quotas are required.
type Deps struct {
	Store     *store.DB
	Jobs      *job.Queue // runs the builds; New registers their worker
	Host      hostapi.Host
	Templates Templates
	Sandboxes Sandboxes
	Registry  Registry      // nil: the sources of builds cannot be images
	Quotas    *quota.Quotas // nil: the default quotas
	Log       *slog.Logger
}

// Service starts, runs, lists and cancels builds. Make it with New and call Open before anything else.
type Service struct {
	cfg       Config
	db        *store.DB
	jobs      *job.Queue
	host      hostapi.Host
	guests    *guestdial.Dialer
	templates Templates
	sandboxes Sandboxes
	registry  Registry
	quotas    *quota.Quotas
	log       *slog.Logger
	dirID     string // set by Open

	collecting sync.Mutex // held by collectGarbage, so that it runs once at a time; taken before mu

	mu        sync.Mutex
	active    map[string]*buildRun         // by build; guarded by mu
	activated chan struct{}                // closed and replaced when one is added to active; guarded by mu
	secrets   map[string]*api.RegistryAuth // by build; guarded by mu
	orphans   map[string]time.Time         // when a resource without an owner was first seen; guarded by mu
}

// New makes a service and registers its worker with the job queue; it does not touch the store.
func New(cfg Config, deps Deps) (*Service, error) {
	if cfg.Dir == "" || deps.Store == nil || deps.Jobs == nil || deps.Host == nil || deps.Templates == nil ||
		deps.Sandboxes == nil || deps.Log == nil {
		return nil, errors.New("build: directory, store, jobs, host, templates, sandboxes and log are required")
	}
	s := &Service{
		cfg: cfg.withDefaults(), db: deps.Store, jobs: deps.Jobs, host: deps.Host,
		guests: guestdial.New(deps.Host), templates: deps.Templates,
		sandboxes: deps.Sandboxes, registry: deps.Registry, quotas: deps.Quotas, log: deps.Log,
		active:    map[string]*buildRun{},
		activated: make(chan struct{}), secrets: map[string]*api.RegistryAuth{}, orphans: map[string]time.Time{},
	}
	if s.quotas == nil {
		s.quotas = quota.New(quota.Config{}, s.db)
	}
	deps.Jobs.Register(s.worker())
	return s, nil
}

// Open prepares the directory, and enqueues jobs for builds of an earlier version that had none. Call it before the
// job queue runs and before any other method.
func (s *Service) Open(ctx context.Context) error {
	if err := os.RemoveAll(s.dir("spool")); err != nil {
		return fmt.Errorf("builds: %w", err)
	}
	for _, name := range []string{"spool", "inputs", "files"} {
		if err := os.MkdirAll(s.dir(name), 0o700); err != nil {
			return fmt.Errorf("builds: %w", err)
		}
	}
	if err := s.openDirID(); err != nil {
		return fmt.Errorf("builds: %w", err)
	}
	return s.adopt(ctx)
}

func (s *Service) dir(names ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, names...)...)
}

// Run collects garbage until ctx ends. The job queue runs the builds themselves.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.GCInterval)
	defer tick.Stop()
	for {
		s.collectGarbage(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
