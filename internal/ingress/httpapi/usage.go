package httpapi

import (
	"github.com/pandastack/pandastack/api"
)

func hostUsage(rq *request) (api.HostUsage, error) {
	if rq.s.deps.UsageHistory == nil {
		return api.HostUsage{}, errNoUsageHistory
	}
	return onSandbox(rq, rq.s.deps.UsageHistory.HostUsage)
}

func series(rq *request) (api.Series, error) {
	if rq.s.deps.UsageHistory == nil {
		return api.Series{}, errNoUsageHistory
	}
	return onSandboxWith(rq, rq.r.URL.Query(), rq.s.deps.UsageHistory.Series)
}

var errNoUsageHistory = api.Errorf(api.Unsupported, "this server keeps no measurements")

func usage(rq *request) (api.Usage, error) {
	return onSandbox(rq, rq.s.deps.Sandboxes.Usage)
}
