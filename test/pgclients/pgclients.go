// Package pgclients fetches clients of PostgreSQL that others wrote, for tests.
//
// They are packages of npm, PyPI and Debian. What is fetched stays below .cache/clients, like the published clients of
// the other tests. A test that needs a program which this machine does not have is skipped with the name of the probe.
package pgclients

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Versions of the packages that the tests fetch.
const (
	psycopg    = "psycopg[binary]==3.3.9"
	sqlAlchemy = "sqlalchemy==2.1.9"
)

// nodePackages are the clients for Node.
var nodePackages = []string{"pg@8.23.1", "@neondatabase/serverless@1.2.0", "drizzle-orm@0.45.4", "ws@8.23.0"}

// Node returns a directory in which node finds pg, the serverless driver and Drizzle.
func Node(t testing.TB) string {
	t.Helper()
	probe(t, "npm", "node")
	return fetched(t, "postgres-clients-npm", func(dir string) []*exec.Cmd {
		return []*exec.Cmd{npm(t, dir, nodePackages...)}
	})
}

func npm(t testing.TB, dir string, packages ...string) *exec.Cmd {
	return exec.CommandContext(t.Context(), "npm",
		append([]string{"install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", dir}, packages...)...)
}

// Python returns the value of PYTHONPATH with which python3 finds psycopg and SQLAlchemy.
func Python(t testing.TB) string {
	t.Helper()
	probe(t, "python3")
	return fetched(t, "postgres-clients-pypi", func(dir string) []*exec.Cmd {
		return []*exec.Cmd{exec.CommandContext(t.Context(), "python3", "-m", "pip", "install", "--quiet",
			"--disable-pip-version-check", "--root-user-action=ignore", "--target", dir, psycopg, sqlAlchemy)}
	})
}

// Psql returns the command line of a program of Debian's PostgreSQL 17 client.
func Psql(t testing.TB, program string) []string {
	t.Helper()
	probe(t, "apt-get", "dpkg-deb")
	dir := fetched(t, "postgres-client-17-debian", func(dir string) []*exec.Cmd {
		return []*exec.Cmd{exec.CommandContext(t.Context(), "sh", "-euc", fetchPsql)}
	})
	root := filepath.Join(dir, "root")
	return []string{
		filepath.Join(root, "usr/lib64/ld-linux-x86-64.so.2"), "--library-path",
		filepath.Join(root, "usr/lib/x86_64-linux-gnu"), filepath.Join(root, "usr/lib/postgresql/17/bin", program),
	}
}

// fetchPsql downloads the client and all that it depends on from Debian 13, without regard to what is installed here.
var fetchPsql = strings.TrimSpace(`
mkdir -p lists/partial cache/archives/partial root
key=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n1) # the one that this machine uses
echo "deb [signed-by=$key] $mirror trixie main" > sources.list
get() {
	apt-get -qq -o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::State::lists="$PWD/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$PWD/cache" \
		-o Dir::Cache::archives="$PWD/cache/archives" -o APT::Install-Recommends=false -o Debug::NoLocking=true \
		-o Acquire::Languages=none -o APT::Sandbox::User= "$@"
}
get update
get install --yes --download-only postgresql-client-17
for deb in cache/archives/*.deb; do dpkg-deb --extract "$deb" root; done
rm -r lists cache
`)

// repository returns the directory of the repository.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		} else if !errors.Is(err, os.ErrNotExist) || dir == "/" {
			t.Fatal("the test does not run in the repository")
		}
		dir = filepath.Dir(dir)
	}
}

// probe skips a test if a program is not installed.
func probe(t testing.TB, programs ...string) {
	t.Helper()
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("probe %s: it is not installed on this host", name)
		}
	}
}

// fetched returns a directory below .cache/clients, which make fills if it is not complete.
func fetched(t testing.TB, name string, make func(dir string) []*exec.Cmd) string {
	t.Helper()
	dir := filepath.Join(repository(t), ".cache", "clients", name)
	mark := filepath.Join(dir, ".complete")
	if _, err := os.Stat(mark); err == nil {
		return dir
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range make(dir) {
		if cmd.Dir == "" {
			cmd.Dir = dir
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
		}
	}
	if err := os.WriteFile(mark, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}
