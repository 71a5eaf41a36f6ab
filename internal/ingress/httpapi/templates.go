package httpapi

import (
	"github.com/pandastack/pandastack/api"
)

func listTemplates(rq *request) ([]api.Template, error) {
	list, err := rq.s.deps.Templates.List(rq.r.Context(), rq.p)
	if list == nil {
		list = []api.Template{}
	}
	return list, err
}

func getTemplate(rq *request) (api.Template, error) {
	return rq.s.deps.Templates.Get(rq.r.Context(), rq.p, rq.r.PathValue("template"))
}

func bakeTemplate(rq *request, req api.BakeRequest) (api.Template, error) {
	return rq.s.deps.Templates.Bake(rq.r.Context(), rq.p, rq.r.PathValue("template"), req)
}

func deleteTemplate(rq *request) error {
	return rq.s.deps.Templates.Delete(rq.r.Context(), rq.p, rq.r.PathValue("template"))
}

func putTags(rq *request, req api.TagRequest) (api.Template, error) {
	return rq.s.deps.Templates.Tag(rq.r.Context(), rq.p, rq.r.PathValue("template"), req)
}

func removeTag(rq *request) error {
	return rq.s.deps.Templates.Untag(rq.r.Context(), rq.p, rq.r.PathValue("template"), rq.r.PathValue("tag"))
}
