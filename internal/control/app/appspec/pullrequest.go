package appspec

// PullRequest is a pull request that an app is a preview of.
type PullRequest struct {
	Number   int    `json:"number"`
	State    string `json:"state,omitempty"`
	Title    string `json:"title,omitempty"`
	Branch   string `json:"branch,omitempty"`
	SHA      string `json:"sha,omitempty"`
	Repo     string `json:"repo,omitempty"`      // owner/name
	RepoID   int64  `json:"repo_id,omitempty"`   // of that at GitHub
	CloneURL string `json:"clone_url,omitempty"` // of the repository that has the commits
	Fork     bool   `json:"fork,omitempty"`      // a stranger's repository has the commits
	Comment  int64  `json:"comment,omitempty"`   // id of the comment about the preview
}
