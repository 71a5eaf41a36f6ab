//go:build apps

package apps

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
)

// generator writes a project into a directory.
type generator struct {
	t   *testing.T
	dir string // of the project
}

// commandLimit bounds a command of a generator.
const commandLimit = 5 * time.Minute

// tool returns the path of a program of this host, without which the test is skipped.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("probe %s: it is not installed on this host", name)
	}
	return path
}

// run runs a program in a directory relative to that of the project.
func (g *generator) run(dir string, argv ...string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), commandLimit)
	defer cancel()
	c := exec.CommandContext(ctx, tool(g.t, argv[0]), argv[1:]...)
	c.Dir = filepath.Join(g.dir, dir)
	c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"NEXT_TELEMETRY_DISABLED=1", "ASTRO_TELEMETRY_DISABLED=1", "UV_PYTHON_DOWNLOADS=never", "UV_NO_PROGRESS=1")
	out, err := c.CombinedOutput()
	if err != nil {
		g.t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// npx runs a starter from npm, which takes its own defaults.
func (g *generator) npx(dir string, argv ...string) {
	g.t.Helper()
	g.run(dir, append([]string{"npx", "--yes"}, argv...)...)
}

// lock writes package-lock.json, with more packages if there are any.
func (g *generator) lock(packages ...string) {
	g.t.Helper()
	g.run(".", append([]string{"npm", "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"},
		packages...)...)
}

// venv installs packages into an environment of Python outside of the project and returns its programs' directory.
func (g *generator) venv(packages ...string) string {
	g.t.Helper()
	dir := filepath.Join(g.t.TempDir(), "venv")
	g.run(".", "python3", "-m", "venv", dir)
	g.run(".", append([]string{filepath.Join(dir, "bin", "pip"), "install", "--quiet"}, packages...)...)
	return filepath.Join(dir, "bin")
}

func (g *generator) write(name, text string) {
	g.t.Helper()
	at := filepath.Join(g.dir, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		g.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

// replace replaces a text of a file that must have it.
func (g *generator) replace(name, old, text string) {
	g.t.Helper()
	data, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		g.t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		g.t.Fatalf("%s does not have %q:\n%s", name, old, data)
	}
	g.write(name, strings.ReplaceAll(string(data), old, text))
}

// project is an app as its ecosystem's starter makes it.
type project struct {
	name     string
	generate func(g *generator)
	file     string // that the second version changes
	old, new string // in the file and in what is served
	path     string // that is requested; /
	also     string // in every response
	app      api.CreateAppRequest
	database bool // a database is linked
}

// change makes the second version.
func (p *project) change(g *generator) { g.replace(p.file, p.old, p.new) }

var projects = []project{
	{
		name: "static", file: "index.html", old: "the first page", new: "the second page",
		generate: func(g *generator) {
			g.write("index.html", "<!doctype html><title>site</title><link rel=stylesheet href=site.css>"+
				"<p>the first page\n")
			g.write("site.css", "p { color: green }\n")
		},
	},
	{
		name: "express", file: "public/index.html", old: "Welcome to Express", new: "Welcome to the second version",
		generate: func(g *generator) {
			g.npx(".", "express-generator@4.16.1", "--no-view", ".")
			g.lock()
		},
	},
	{
		name: "flask", file: "app.py", old: "Hello, World!", new: "Hello, second version!",
		generate: func(g *generator) {
			g.write("requirements.txt", "flask==3.1.2\ngunicorn==23.0.0\n")
			g.write("app.py", "from flask import Flask\n\napp = Flask(__name__)\n\n\n@app.route(\"/\")\n"+
				"def hello():\n    return \"Hello, World!\"\n")
		},
		app: api.CreateAppRequest{StartCommand: "gunicorn --bind 0.0.0.0:$PORT app:app"},
	},
	{
		name: "go", file: "main.go", old: "hello from Go", new: "hello from the second version",
		generate: func(g *generator) {
			g.run(".", "go", "mod", "init", "example.com/site")
			g.write("main.go", `package main

import (
	"fmt"
	"net/http"
	"os"

	"github.com/go-chi/chi/v5"
)

func main() {
	r := chi.NewRouter()
	r.Get("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello from Go") })
	if err := http.ListenAndServe(":"+os.Getenv("PORT"), r); err != nil {
		panic(err)
	}
}
`)
			g.run(".", "go", "get", "github.com/go-chi/chi/v5@v5.2.1")
		},
	},
	{
		name: "fastapi-uv", file: "main.py", old: "Hello World", new: "Hello second version",
		generate: func(g *generator) {
			uv := filepath.Join(g.venv("uv==0.9.30"), "uv")
			g.run(".", uv, "init", "--bare", "--no-workspace", "--name", "site", "--python", "python3")
			g.run(".", uv, "add", "--no-sync", "fastapi==0.121.0", "uvicorn==0.38.0")
			g.write("main.py", "from fastapi import FastAPI\n\napp = FastAPI()\n\n\n@app.get(\"/\")\n"+
				"async def root():\n    return {\"message\": \"Hello World\"}\n")
		},
	},
	{
		name: "django-postgres", file: "site_/views.py", old: "the first version", new: "the second version",
		also: "18 migrations", database: true, generate: django,
		app: api.CreateAppRequest{
			StartCommand: "gunicorn --bind 0.0.0.0:$PORT site_.wsgi", ReleaseCommand: "python manage.py migrate",
			Env: map[string]string{"DJANGO_SETTINGS_MODULE": "site_.settings"},
		},
	},
	{
		name: "vite-react", file: "index.html", old: "Vite + React", new: "Vite + second version", path: "/some/page",
		generate: func(g *generator) {
			g.npx("..", "create-vite@7.1.1", filepath.Base(g.dir), "--template", "react")
			g.lock()
		},
	},
	{
		name: "astro", file: "src/pages/index.astro", old: "the first page", new: "the second page",
		generate: func(g *generator) {
			// The starter takes its templates from GitHub; this is the manual setup of Astro's documentation.
			g.run(".", "npm", "init", "-y")
			g.run(".", "npm", "pkg", "set", "scripts.build=astro build", "type=module")
			g.lock("astro@5.14.1")
			g.write("astro.config.mjs", "import { defineConfig } from 'astro/config';\n"+
				"export default defineConfig({});\n")
			g.write("src/pages/index.astro", "---\nconst page = 'page';\n---\n<html><body><h1>the first {page}</h1>"+
				"<p>the first page</p></body></html>\n")
		},
	},
	{
		name: "monorepo", file: "packages/words/index.js", old: "the first words", new: "the second words",
		generate: func(g *generator) {
			g.run(".", "npm", "init", "-y")
			g.run(".", "npm", "init", "-y", "-w", "packages/words")
			g.run(".", "npm", "init", "-y", "-w", "apps/site")
			g.run(".", "npm", "pkg", "set", "name=@site/words", "-w", "packages/words")
			g.run(".", "npm", "pkg", "set", "scripts.start=node index.js", "-w", "apps/site")
			g.write("packages/words/index.js", "module.exports = 'the first words';\n")
			g.write("apps/site/index.js", "const words = require('@site/words');\n"+
				"require('fastify')().get('/', async () => words)"+
				".listen({ host: '0.0.0.0', port: process.env.PORT });\n")
			g.lock("-w", "apps/site", "fastify@5.6.1", "@site/words@1.0.0")
		},
		app: api.CreateAppRequest{RootDirectory: "apps/site"},
	},
	{
		name: "dockerfile", file: "server.js", old: "the first image", new: "the second image",
		generate: func(g *generator) {
			g.run(".", "npm", "init", "-y")
			g.lock("express@5.1.0")
			g.write("server.js", "require('express')().get('/', (_, r) => r.send('the first image'))"+
				".listen(process.env.PORT)\n")
			g.write("Dockerfile", "FROM base\nWORKDIR /srv\nCOPY package.json package-lock.json ./\nRUN npm ci\n"+
				"COPY . .\nCMD node server.js\n")
		},
	},
	{
		name: "next", file: "app/page.js", old: "Hello World!", new: "Hello second version!",
		generate: func(g *generator) {
			g.npx("..", "create-next-app@15.5.4", filepath.Base(g.dir), "--empty", "--js", "--app", "--no-eslint",
				"--no-tailwind", "--no-src-dir", "--skip-install", "--disable-git", "--use-npm",
				"--import-alias", "@/*", "--yes")
			g.lock()
		},
	},
}

// django makes a project whose only view reads its database.
func django(g *generator) {
	bin := g.venv("django==5.2.7")
	g.run(".", filepath.Join(bin, "django-admin"), "startproject", "site_", ".")
	g.write("requirements.txt", "django==5.2.7\ngunicorn==23.0.0\ndj-database-url==3.0.1\npsycopg[binary]==3.2.10\n")
	g.write("site_/views.py", `from django.db import connection
from django.http import HttpResponse


def home(request):
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_migrations")
        return HttpResponse(f"the first version, {cursor.fetchone()[0]} migrations")
`)
	g.replace("site_/urls.py", "path('admin/', admin.site.urls),", "path('', views.home),")
	g.replace("site_/urls.py", "from django.contrib import admin", "from . import views")
	g.replace("site_/settings.py", "ALLOWED_HOSTS = []", "ALLOWED_HOSTS = ['*']")
	g.write("site_/settings.py", g.read("site_/settings.py")+
		"\nimport dj_database_url\n\nDATABASES = {'default': dj_database_url.config(conn_health_checks=True)}\n")
}

func (g *generator) read(name string) string {
	g.t.Helper()
	data, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		g.t.Fatal(err)
	}
	return string(data)
}

// commit commits all files of a project, and makes a repository of it if it is none.
func (g *generator) commit(message string) {
	g.t.Helper()
	if _, err := os.Stat(filepath.Join(g.dir, ".git")); err != nil {
		g.run(".", "git", "init", "-q", "-b", "main")
	}
	g.run(".", "git", "add", ".")
	g.run(".", "git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", message)
}
