package node

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/function/builder"
	"github.com/pandastack/pandastack/internal/control/function/invocation"
	"github.com/pandastack/pandastack/internal/control/function/limit"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/ingress/functionedge"
	"github.com/pandastack/pandastack/internal/os/clientconfig"
)

// functions is the service for functions with what it is made of.
type functions struct {
	suffix  string
	service *function.Service
	jobs    *invocation.Service
	edge    *functionedge.Edge // set by handler
}

// functionDeps are the parts of the control plane that functions need.
type functionDeps struct {
	store     *store.DB
	sandboxes *sandbox.Service
	templates *template.Service
	quotas    *quota.Quotas
}

// runtimeProgram builds functions in machines and serves them. It is in the directory of the guest agent.
const runtimeProgram = "pandastack-runtime"

// functionSuffix returns the domain of the functions' host names.
func (n *node) functionSuffix() string {
	if s := n.Config.Functions.Suffix; s != "" {
		return s
	}
	return n.below("fn")
}

// functionURL returns what makes the URLs of functions.
func (n *node) functionURL(base *url.URL, suffix string) func(api.FunctionID) string {
	return func(id api.FunctionID) string {
		host := "fn-" + string(id) + "." + suffix
		if port := base.Port(); port != "" {
			host = net.JoinHostPort(host, port)
		}
		return cmp.Or(base.Scheme, "http") + "://" + host
	}
}

// functions creates the service for functions.
func (n *node) functions(ctx context.Context, deps functionDeps, jobs *job.Queue) (f functions, err error) {
	set := n.Config.Functions
	base, err := url.Parse(n.apiURL)
	if err != nil {
		return f, fmt.Errorf("address of the API: %w", err)
	}
	f.suffix = n.functionSuffix()
	spool := n.path("functions", "spool")
	if err := os.RemoveAll(spool); err != nil {
		return f, fmt.Errorf("functions: %w", err)
	}
	if err := os.MkdirAll(spool, 0o700); err != nil {
		return f, fmt.Errorf("functions: %w", err)
	}
	code, err := n.functionCode(ctx, deps.store.ID())
	if err != nil {
		return f, fmt.Errorf("code of functions: %w", err)
	}
	mirrors, err := appMirrors(ctx, n.Config.Apps.Mirrors, clientconfig.Here())
	if err != nil {
		return f, err
	}
	builds, err := builder.New(builder.Config{
		Program: filepath.Join(filepath.Dir(n.Config.Agent()), runtimeProgram), Timeout: set.BuildTimeout,
		Mirrors:  builder.Mirrors{Certificates: mirrors.Certificates, Hosts: mirrors.Hosts, Env: mirrors.Env},
		Rehearse: n.translates,
	}, deps.sandboxes, deps.templates, n.Log)
	if err != nil {
		return f, err
	}
	f.service, err = function.New(function.Config{
		Template: set.Template, Spool: spool, Builds: set.Builds, Wait: set.Wait,
		Limit: limit.Config{Total: set.Concurrency},
		URL:   n.functionURL(base, f.suffix),
		Endpoint: func(id api.FunctionID) string {
			return n.apiURL + "/v1/functions/" + string(id) + "/http-invoke"
		},
	}, function.Deps{
		Store: deps.store, Sandboxes: deps.sandboxes, Builder: builds, Templates: deps.templates, Code: code,
		Quotas: deps.quotas, Log: n.Log,
	})
	if err != nil {
		return f, err
	}
	return f, n.invocations(&f, deps, jobs)
}

// run runs what functions need.
func (f functions) run(ctx context.Context, n *node) {
	n.run(ctx, "functions", f.service.Run)
	n.run(ctx, "asynchronous invocations", f.jobs.Run)
}
