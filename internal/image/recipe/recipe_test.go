package recipe_test

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pandastack/pandastack/internal/image/recipe"
)

func TestBuiltin(t *testing.T) {
	all, err := recipe.Builtin(recipe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	base, ok := recipe.Resolve(all, "ubuntu-24.04")
	if !ok || base.Name != "base" || base.User != "user" || base.Home() != "/home/user" || base.MemoryMiB != 512 {
		t.Errorf("ubuntu-24.04: got %+v", base)
	}
	if _, ok := recipe.Resolve(all, "no-such"); ok {
		t.Error("Resolve of an unknown name returned a recipe")
	}
	if mini := all["mini"]; !mini.Hidden || mini.Ready == "" {
		t.Errorf("mini: got %+v", mini)
	}
}

func TestParseDefaults(t *testing.T) {
	r, err := recipe.Parse([]byte("name: x\nuser: root\n"))
	if err != nil {
		t.Fatal(err)
	}
	if r.VCPUs != 1 || r.MemoryMiB != 512 || r.Workdir != "/root" || r.Distribution.Variant != "minbase" {
		t.Errorf("got defaults %+v", r)
	}
}

func TestParseRefusesInvalidRecipes(t *testing.T) {
	rows := map[string]struct{ text, want string }{
		"unknown":   {"name: x\nmemory: 3\n", "memory"},
		"duplicate": {"name: x\nname: y\n", "name"},
		"type":      {"name: x\nvcpus: many\n", "many"},
		"name":      {"name: Big_Name\n", "recipe: name"},
		"none":      {"{}", "recipe: name"},
		"vcpus":     {"name: x\nvcpus: 99\n", "1 to 32"},
		"memory":    {"name: x\nmemory_mib: -1\n", "memory_mib"},
		"disk":      {"name: x\ndisk_mib: 9999999999\n", "disk_mib"},
		"user":      {"name: x\nuser: '-r'\n", "recipe: user"},
		"workdir":   {"name: x\nworkdir: ../etc\n", "recipe: workdir"},
		"package":   {"name: x\ndistribution: {packages: ['--option']}\n", "distribution.packages[0]"},
		"mirror":    {"name: x\ndistribution: {suite: a, mirror: 'file:///etc'}\n", "distribution.mirror"},
		"variant":   {"name: x\ndistribution: {variant: custom}\n", "minbase"},
		"command":   {"name: x\nwarm: [' ']\n", "warm[0]"},
		"two":       {"name: x\n---\nname: y\n", "document"},
		"disk name": {"name: x\ndisks: [{name: Data, size_mib: 64, mount: /d}]\n", "disks[0].name"},
		"disk size": {"name: x\ndisks: [{name: d, mount: /d}]\n", "disks[0].size_mib"},
		"mount":     {"name: x\ndisks: [{name: d, size_mib: 64, mount: /}]\n", "disks[0].mount"},
		"option":    {"name: x\ndisks: [{name: d, size_mib: 64, mount: /d, options: ['a,b']}]\n", "disks[0].options"},
		"owner":     {"name: x\ndisks: [{name: d, size_mib: 64, mount: /d, owner: 'a b'}]\n", "disks[0].owner"},
		"twice": {
			"name: x\ndisks: [{name: d, size_mib: 64, mount: /d}, {name: d, size_mib: 64, mount: /e}]\n",
			"disks[1].name",
		},
		"nested": {
			"name: x\ndisks: [{name: d, size_mib: 64, mount: /d}, {name: e, size_mib: 64, mount: /d/e}]\n",
			"disks[1].mount",
		},
		"both": {"name: X\nvcpus: 0\n", "vcpus"},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			_, err := recipe.Parse([]byte(r.text))
			if err == nil || !strings.Contains(err.Error(), r.want) {
				t.Errorf("Parse: got error %v, want one that contains %q", err, r.want)
			}
		})
	}
	if _, err := recipe.Parse([]byte("name: x\n" + strings.Repeat("#", recipe.MaxBytes))); err == nil {
		t.Error("Parse of a recipe that is too large: got no error")
	}
}

func TestDigest(t *testing.T) {
	a, err := recipe.Parse([]byte("name: x\n"))
	if err != nil {
		t.Fatal(err)
	}
	b, c := a, a
	b.Description = "shown only"
	c.MemoryMiB = 1024
	d := a
	d.Disks = []recipe.Disk{{Name: "data", SizeMiB: 64, Mount: "/data"}}
	if a.Digest() != b.Digest() || a.Digest() == c.Digest() || a.Digest() == d.Digest() {
		t.Error("Digest does not depend on exactly the baked fields")
	}
}

func TestLoadRefusesAmbiguity(t *testing.T) {
	files := fstest.MapFS{
		"a/recipe.yaml": {Data: []byte("name: a\naliases: [c]\n")},
		"b/recipe.yaml": {Data: []byte("name: b\naliases: [c]\n")},
	}
	if _, err := recipe.Load(files, recipe.Options{}); err == nil || !strings.Contains(err.Error(), `"c" names both`) {
		t.Errorf("Load: got error %v", err)
	}
	files = fstest.MapFS{"a/recipe.yaml": {Data: []byte("name: b\n")}}
	if _, err := recipe.Load(files, recipe.Options{}); err == nil {
		t.Error("Load of a recipe named unlike its directory: got no error")
	}
}

func FuzzParse(f *testing.F) {
	base, err := os.ReadFile("../../../templates/base/recipe.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(base)
	f.Add([]byte("name: x\na: &a [*a]\n"))
	f.Add([]byte("name: {a: 1}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := recipe.Parse(data)
		if err != nil {
			return
		}
		if r.Name == "" || r.VCPUs < 1 || r.Digest() == "" {
			t.Errorf("Parse: got %+v", r)
		}
	})
}
