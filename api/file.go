package api

// FileEntry describes a file: GET /v1/sandboxes/{id}/fs/stat, and the entries of fs/dir.
type FileEntry struct {
	Name        string `json:"name"`
	Path        string `json:"path" doc:"Absolute."`
	IsDir       bool   `json:"is_dir"`
	Size        int64  `json:"size"`
	Mode        string `json:"mode" doc:"One letter: f file, d directory, l symbolic link, o other."`
	Permissions string `json:"permissions" doc:"Four octal digits, such as 0644."`
	MTime       int64  `json:"mtime" doc:"Unix seconds."`
	Target      string `json:"target,omitempty" doc:"Of a symbolic link."`
	User        string `json:"user"`
	Group       string `json:"group"`
}

// DirListing is the response of GET /v1/sandboxes/{id}/fs/dir.
type DirListing struct {
	Path    string      `json:"path"`
	Entries []FileEntry `json:"entries"`
}

// FileWritten is the response of PUT /v1/sandboxes/{id}/fs.
type FileWritten struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// MakeDirRequest makes a directory with its parents: POST /v1/sandboxes/{id}/fs/mkdir.
type MakeDirRequest struct {
	Path string `json:"path"`
	User string `json:"user,omitempty"`
}

// Validate checks the request on its own.
func (r *MakeDirRequest) Validate() error { return ValidatePath("path", r.Path) }

// MoveRequest renames a file or directory: POST /v1/sandboxes/{id}/fs/move.
type MoveRequest struct {
	From string `json:"from"`
	To   string `json:"to"`
	User string `json:"user,omitempty"`
}

// Validate checks the request on its own.
func (r *MoveRequest) Validate() error {
	if err := ValidatePath("from", r.From); err != nil {
		return err
	}
	return ValidatePath("to", r.To)
}

// ValidatePath checks that a path in a sandbox has 1 to 4095 bytes, none of them zero.
func ValidatePath(field, path string) error {
	switch {
	case path == "":
		return invalid(field, "is missing: send an absolute path, or one relative to the user's home")
	case len(path) > 4095:
		return invalid(field, "has %d bytes: a path has at most 4095", len(path))
	}
	for i := range len(path) {
		if path[i] == 0 {
			return invalid(field, "holds a zero byte")
		}
	}
	return nil
}
