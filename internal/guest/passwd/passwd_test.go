package passwd

import (
	"errors"
	"os"
	"path"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

func database(t *testing.T) Database {
	t.Helper()
	d := Database{Root: t.TempDir()}
	for name, content := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1001:A, B:/home/user:/bin/zsh\n" +
			"bare:x:7:7:::\nbroken:x\n:x:a:b:c:d:e\n",
		"group": "root:x:0:\nuser:x:1001:\nsudo:x:27:user\nwheel:x:28:other,user\nusers:x:29:users,auser\n",
	} {
		if err := os.MkdirAll(path.Join(d.Root, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path.Join(d.Root, "etc", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestLookup(t *testing.T) {
	d := database(t)
	for name, want := range map[string]User{
		"":     {Name: "root", Home: "/root", Shell: "/bin/bash"},
		"root": {Name: "root", Home: "/root", Shell: "/bin/bash"},
		"user": {Name: "user", UID: 1000, GID: 1001, Groups: []uint32{27, 28}, Home: "/home/user", Shell: "/bin/zsh"},
		"1000": {Name: "user", UID: 1000, GID: 1001, Groups: []uint32{27, 28}, Home: "/home/user", Shell: "/bin/zsh"},
		"bare": {Name: "bare", UID: 7, GID: 7, Home: "/", Shell: "/bin/sh"},
		"4711": {Name: "4711", UID: 4711, GID: 4711, Home: "/", Shell: "/bin/sh"},
	} {
		got, err := d.Lookup(name)
		if err != nil || got.Name != want.Name || got.UID != want.UID || got.GID != want.GID || got.Home != want.Home ||
			got.Shell != want.Shell || !slices.Equal(got.Groups, want.Groups) {
			t.Errorf("Lookup(%q) = %+v, %v, want %+v", name, got, err, want)
		}
	}
	for _, name := range []string{"nobody", "broken", "-1", "99999999999"} {
		if _, err := d.Lookup(name); !errors.Is(err, guestapi.ErrNotFound) {
			t.Errorf("Lookup(%q): got error %v, want ErrNotFound", name, err)
		}
	}
	if u, err := (Database{Root: t.TempDir()}).Lookup(""); err != nil || u.Home != "/" {
		t.Errorf("Lookup of the default user without a database: got %+v, %v, want root", u, err)
	}
}

func TestResolve(t *testing.T) {
	u := User{Home: "/home/user"}
	for in, want := range map[string]string{
		"": "/home/user", "a/b": "/home/user/a/b", "~": "/home/user", "~/x": "/home/user/x",
		"/a/../b": "/b", "~x": "/home/user/~x", "../y": "/home/y",
	} {
		if got := u.Resolve(in); got != want {
			t.Errorf("Resolve(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	n := database(t).Names()
	if n.User(1000) != "user" || n.Group(27) != "sudo" || n.User(5) != "5" || n.Group(5) != "5" {
		t.Errorf("got names %s %s %s %s", n.User(1000), n.Group(27), n.User(5), n.Group(5))
	}
}

// FuzzLookup checks that no /etc/passwd of a guest makes the parser panic or find a user of another name.
func FuzzLookup(f *testing.F) {
	f.Add("user:x:1:1::/h:/s\n", "g:x:2:user\n", "user")
	f.Fuzz(func(t *testing.T, passwd, group, name string) {
		d := Database{Root: t.TempDir()}
		_ = os.Mkdir(path.Join(d.Root, "etc"), 0o755)
		_ = os.WriteFile(path.Join(d.Root, "etc/passwd"), []byte(passwd), 0o644)
		_ = os.WriteFile(path.Join(d.Root, "etc/group"), []byte(group), 0o644)
		u, err := d.Lookup(name)
		if _, number := parseID(name); err == nil && name != "" && !number && u.Name != name {
			t.Errorf("Lookup(%q) found %+v", name, u)
		}
		_ = d.Names().User(1)
	})
}
