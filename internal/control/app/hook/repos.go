package hook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// maxPreviewRepos bounds the repositories of a workspace.
const maxPreviewRepos = 500

// PreviewRepos returns the repositories of a workspace whose pull requests get previews.
func (s *Service) PreviewRepos(ctx context.Context, p auth.Principal) (api.PreviewRepos, error) {
	rows, err := s.db.Read().PreviewRepos(ctx, string(p.Workspace))
	if err != nil {
		return api.PreviewRepos{}, api.AsError(err)
	}
	out := api.PreviewRepos{Repos: []api.PreviewRepo{}}
	for _, r := range rows {
		out.Repos = append(out.Repos,
			api.PreviewRepo{GitHubRepoID: r.Repository, RepoFullName: r.Name, Enabled: r.Enabled})
	}
	return out, nil
}

// EnablePreviewRepo gives previews to the pull requests of a repository, for the apps of a workspace.
func (s *Service) EnablePreviewRepo(ctx context.Context, p auth.Principal, r api.PreviewRepo) (api.PreviewRepo, error) {
	r.Enabled = true
	row := store.PreviewRepo{Workspace: string(p.Workspace), Repository: r.GitHubRepoID, Name: r.RepoFullName,
		Enabled: true, Created: store.Micros(time.Now())}
	err := s.db.Write(ctx, "preview repo", func(ctx context.Context, tx *store.Tx) error {
		rows, err := tx.PreviewRepos(ctx, row.Workspace)
		if err != nil {
			return err
		}
		if len(rows) >= maxPreviewRepos {
			return api.Errorf(api.QuotaExceeded, "the workspace has previews for %d repositories: disable one first",
				len(rows))
		}
		return tx.PutPreviewRepo(ctx, &row)
	})
	if err != nil {
		return r, api.AsError(err)
	}
	return r, nil
}

// DisablePreviewRepo ends that, and removes the variables. Previews that are there stay until their pull requests are
// closed.
func (s *Service) DisablePreviewRepo(ctx context.Context, p auth.Principal, repo int64) error {
	err := s.db.Write(ctx, "preview repo", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.DeletePreviewRepo(ctx, string(p.Workspace), repo); err != nil {
			return err
		}
		owner := VariablesOf(p.Workspace, repo)
		rows, err := tx.AppVariables(ctx, owner)
		for _, v := range rows {
			err = errors.Join(err, tx.DeleteAppVariable(ctx, owner, "", v.Name))
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return errNoRepo(repo)
	}
	if err != nil {
		return api.AsError(err)
	}
	return nil
}

// VariablesOf returns the owner under which the variables of the previews of a repository are stored. Ids are GitHub's,
// and any workspace may name one, so the workspace is part of it.
func VariablesOf(workspace api.Workspace, repo int64) string {
	return fmt.Sprintf("preview-repo/%s/%d", workspace, repo)
}
