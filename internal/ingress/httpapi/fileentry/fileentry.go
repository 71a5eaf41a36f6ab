// Package fileentry describes files of sandboxes as the API does.
package fileentry

import (
	"fmt"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Of returns the description of a file for clients.
func Of(f guestapi.FileInfo) api.FileEntry {
	e := api.FileEntry{
		Name: f.Name, Path: f.Path, IsDir: f.Kind == guestapi.KindDir, Size: f.Size,
		Mode: kindLetter(f.Kind), Permissions: fmt.Sprintf("%04o", f.Mode&0o7777), Target: f.Target,
		User: f.User, Group: f.Group,
	}
	if f.Modified.After(time.Unix(0, 0)) {
		e.MTime = f.Modified.Unix()
	}
	return e
}

// kindLetter returns the word of a kind of file in the API.
func kindLetter(k guestapi.FileKind) string {
	switch k {
	case guestapi.KindFile:
		return "f"
	case guestapi.KindDir:
		return "d"
	case guestapi.KindSymlink:
		return "l"
	case guestapi.KindOther:
		return "o"
	}
	return "o"
}
