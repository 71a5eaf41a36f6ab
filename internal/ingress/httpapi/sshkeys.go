package httpapi

import (
	"context"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/sshapi"
)

func sshRoutes() []route {
	const keys = "/v1/ssh-keys"
	return tagged("ssh",
		get("/v1/ssh", "Get how to reach sandboxes over SSH", jsonOut(200, onSSH(sshapi.API.Reach))),
		get(keys, "List the SSH keys of the workspace, newest first", jsonOut(200, onSSH(sshapi.API.List))),
		post(keys, "Add a public key, which gets the rights of the caller's API key", jsonInOut(201, addSSHKey)),
		del(keys+"/{ssh_key}", "Delete an SSH key; its connections end", noContent(deleteSSHKey)),
	)
}

func (rq *request) sshCaller() sshapi.Caller {
	return sshapi.Caller{Principal: rq.p, Key: rq.r.PathValue("ssh_key")}
}

// onSSH is a handler that makes a call without a body.
func onSSH[Out any](do func(sshapi.API, context.Context, sshapi.Caller) (Out, error)) func(*request) (Out, error) {
	return func(rq *request) (Out, error) { return do(rq.s.deps.SSH, rq.r.Context(), rq.sshCaller()) }
}

func addSSHKey(rq *request, req api.AddSSHKeyRequest) (api.SSHKey, error) {
	key, err := rq.s.deps.SSH.Add(rq.r.Context(), rq.sshCaller(), req)
	rq.target = string(key.ID)
	return key, err
}

func deleteSSHKey(rq *request) error { return rq.s.deps.SSH.Delete(rq.r.Context(), rq.sshCaller()) }
