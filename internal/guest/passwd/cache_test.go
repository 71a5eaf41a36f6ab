package passwd

import (
	"errors"
	"os"
	"path"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

func TestCacheSeesChanges(t *testing.T) {
	l := &Cache{Database: database(t)}
	replace := func(name, content string) {
		t.Helper()
		file := path.Join(l.Root, "etc", name)
		if err := errors.Join(
			os.WriteFile(file+".new", []byte(content), 0o644), os.Rename(file+".new", file),
		); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if u, err := l.Lookup("user"); err != nil || u.UID != 1000 || len(u.Groups) != 2 {
			t.Fatalf("Lookup: got %+v, %v", u, err)
		}
	}
	if u, err := l.Lookup("bare"); err != nil || u.UID != 7 {
		t.Fatalf("second Lookup: got %+v, %v", u, err)
	}
	replace("passwd", "user:x:1002:1001::/home/user:/bin/zsh\n")
	if u, err := l.Lookup("user"); err != nil || u.UID != 1002 || len(u.Groups) != 2 {
		t.Fatalf("after a change of /etc/passwd: got %+v, %v", u, err)
	}
	replace("group", "")
	if u, err := l.Lookup("user"); err != nil || len(u.Groups) != 0 {
		t.Fatalf("after a change of /etc/group: got %+v, %v", u, err)
	}
	replace("passwd", "")
	if u, err := l.Lookup("user"); !errors.Is(err, guestapi.ErrNotFound) {
		t.Fatalf("after the user was removed: got %+v, %v, want an error", u, err)
	}
}
