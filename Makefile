# The verbs of this repository, the same for a person and for .ci/run. `make help` lists them.

GO          ?= go
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
DATA        ?= $(CURDIR)/.cache/data
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
PANDASTACK  := bin/pandastack --data-dir $(DATA)
SUDO        := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E env PATH="$$PATH")

export CGO_ENABLED := 0
export PANDASTACK_TEST_DATA := $(DATA)

.DEFAULT_GOAL := help
.PHONY: help build install generate fmt lint check prepare test test-unit test-root test-vm test-e2e test-slow test-apps test-templates test-memory soak bench demo kernel release-data clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/pandastack, and bin/pandastack-guest, -build and -runtime, which run in machines
	$(GO) build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)" -o bin/ ./cmd/pandastack
	@# Templates are baked with the guest agent, and builds of apps and functions begin with the others: they are
	@# others only if their code is.
	$(GO) build -trimpath -buildvcs=false -ldflags "-s -w" -o bin/ ./cmd/pandastack-guest ./cmd/pandastack-build \
		./cmd/pandastack-runtime

install: build ## install the built program as a service of systemd, or upgrade it
	$(SUDO) bin/pandastack service install $(INSTALL)

generate: ## write what is generated: OpenAPI, CLI and configuration pages, help goldens
	tools/generate.sh

fmt: ## format the code
	gofmt -w $$(git ls-files '*.go')

lint: ## vet, staticcheck and the rules of this repository
	tools/lint.sh $(STATICCHECK)

check: lint ## lint, and whether everything generated is current
	tools/generate.sh --check

prepare: build ## make this machine ready: packages, guest kernel, data directory below .cache
	$(SUDO) $(PANDASTACK) setup --yes $(SETUP)

# released runs a command and unmounts the data directory, whatever became of the command.
released = @status=0; $(1) || status=$$?; $(MAKE) --no-print-directory release-data || status=1; exit $$status

test: check prepare ## all tests: check, unit, kernel (root), machine (vm), end to end
	$(call released,$(SUDO) tools/test.sh unit root vm e2e)

test-unit: ## tests that need nothing
	tools/test.sh unit

test-root: ## tests against the kernel, in namespaces of their own
	$(SUDO) tools/test.sh root

test-vm: prepare ## tests with real guests
	$(SUDO) tools/test.sh vm

test-e2e: prepare ## tests with the whole program
	$(SUDO) tools/test.sh e2e

test-slow: prepare ## test-e2e on the templates that published clients ask for, which take minutes to bake, and stores of other servers
	$(call released,PANDASTACK_TEST_SLOW=1 $(SUDO) tools/test.sh e2e clouds)

test-apps: prepare ## deploy projects that starters of npm, PyPI and Go generate: push, request, change, roll back; half an hour, needs registries
	$(call released,$(SUDO) tools/test.sh apps)

test-templates: prepare ## bake every template and run its check from a restored sandbox: an hour, 15 GB; not part of test
	$(call released,$(SUDO) tools/test.sh slow)

test-memory: prepare ## boot guests of many memory sizes on every installed kernel
	$(call released,$(SUDO) tools/test.sh memory)

soak: prepare ## test/chaos with twenty times the rounds: kills, full disks, overload, a hostile tenant; 50 kills of a database and its relay; about an hour
	$(call released,$(SUDO) tools/test.sh soak)

bench: SETUP := --bench
bench: prepare ## measure a node over HTTP: a table, and .cache/bench.json
	$(call released,$(SUDO) env PANDASTACK_BUILD_INSECURE_REGISTRIES=127.0.0.1:7893 PANDASTACK_CAPACITY_MEMORY_OVERCOMMIT_PERCENT=400 $(PANDASTACK) bench --output .cache/bench.json)

demo: prepare ## the main job in front of you: create, run, fork live, hibernate, wake
	$(call released,$(SUDO) $(PANDASTACK) demo)

kernel: build ## build the tuned guest kernel from the distribution's source and use it from now on
	$(SUDO) $(PANDASTACK) setup --yes --kernel tuned

release-data: ## unmount the data directory that prepare made
	@for try in $$(seq 30); do mountpoint -q $(DATA) || exit 0; $(SUDO) umount $(DATA) && exit 0; sleep 1; done; exit 1

clean: release-data ## remove what was built and everything below .cache
	$(SUDO) rm -rf bin .cache
