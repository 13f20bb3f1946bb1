# `make` lists what there is; `make run` and `make test` do everything. See README.md.
# Needs Python 3.10 or newer, a Rust toolchain, a C compiler and make. Everything else goes into .venv and target.

PYTHON ?= python3
# Flags of the launcher, after --hostname 127.0.0.1: for other machines to reach it, ARGS="--hostname 0.0.0.0".
ARGS ?=
# The image of test-image.
IMAGE ?= localhost/text-generation
export IMAGE
# A folder or a hub id; the demo models of this repository (models/demo-vision sees) need neither network nor GPU.
MODEL_ID ?= models/demo
# How cargo builds the two programs; see Cargo.toml. Tests run those of `dev`, which share what is compiled with the
# tests of Rust.
PROFILE ?= quick
test test-%: PROFILE = dev

VENV := .venv
# Made by integration-tests/test_clients.py.
CLIENT_VENVS := .venv-clients
BIN := $(VENV)/bin
PACKAGE := server/text_generation_server
STUBS := $(PACKAGE)/pb/generate_pb2.py
# The Python that tests of the launcher run their stand-ins with.
export TEXT_GENERATION_PYTHON := $(CURDIR)/$(BIN)/python
export PATH := $(CURDIR)/$(BIN):$(PATH)

rust_sources = $(shell find $(1) -name target -prune -o -type f \( -name '*.rs' -o -name '*.toml' -o -name '*.proto' -o -name '*.py' -o -name '*.pyi' -o -path '*/ui/*' \) -print) Cargo.toml Cargo.lock
PYTHON_PROJECTS := kernels server clients/python

.DEFAULT_GOAL := help
.PHONY: help run install benchmark wheel ui-libraries test lint lint-features audit fmt file-map kernel-table clean bench-router bench-bodies bench-traces bench-client bench-encode bench-parse bench-kv-pool bench-policy
.PHONY: test-rust test-server test-kernels test-aot test-router test-client test-benchmark test-integration test-clients test-routers test-agents test-formats test-ui test-chart test-image test-ray

# Lists the targets that have a description behind `##`, under the headings of this file.
help: ## List what there is
	@awk -F ':.*## ' '/^# --- .* -+$$/ { gsub(/^# --- | -+$$/, ""); heading = $$0 } \
	    /^[a-z-]+:.*## / { if (heading) printf "\n%s\n", heading; heading = ""; printf "  %-17s %s\n", $$1, $$2 }' Makefile

run: install ## Serve MODEL_ID, a folder or a name on the hub (else the demo model); ARGS are flags of the launcher
	@exec text-generation-launcher --model-id '$(MODEL_ID)' --hostname 127.0.0.1 $(ARGS)

# --- set-up -----------------------------------------------------------------------------------------------------------

# Two things at a time: pip unpacks gigabytes on one core while cargo compiles on the others.
install: ## Put the commands into .venv/bin; PROFILE=release optimises them
	@+$(MAKE) --no-print-directory -j 2 PROFILE=$(PROFILE) $(VENV)/.commands-$(PROFILE)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed; pass another one as PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(VENV)/.build-tools: server/requirements-build.txt | $(VENV)/bin/python
	$(PIP) -r $<
	@touch $@

$(VENV)/.dependencies: server/requirements.txt $(VENV)/.build-tools
	@echo "Installing Python packages, of which torch is the largest"
	$(PIP) -r $<
	@touch $@

$(VENV)/.dev-dependencies: server/requirements-dev.txt router/python/requirements-test.txt $(VENV)/.dependencies
	$(PIP) -r $<
	$(PIP) --no-deps -r router/python/requirements-test.txt
	@touch $@

$(STUBS): proto/text_generation_server/pb/generate.proto $(VENV)/.dependencies
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=server --pyi_out=server --grpc_python_out=server $<

WHEELS := target/wheels/$(PROFILE)

# Cargo's lock lets one build run at a time, so the second waits for the first and leaves its place to pip.
$(WHEELS)/launcher/.built: $(call rust_sources,launcher process traces features) $(VENV)/.build-tools
	@echo "Building the launcher and the router"
	rm -rf $(@D)
	$(BIN)/maturin build --quiet --profile $(PROFILE) --locked -m launcher/Cargo.toml -o $(@D)
	@touch $@

$(WHEELS)/router/.built: $(call rust_sources,proto router process traces features) $(VENV)/.build-tools | $(WHEELS)/launcher/.built
	rm -rf $(@D)
	$(BIN)/maturin build --quiet --profile $(PROFILE) --locked -m router/python/Cargo.toml -o $(@D)
	@touch $@

# The Python packages are installed in place: an edit is live at once.
$(VENV)/.python: $(patsubst %,%/pyproject.toml,$(PYTHON_PROJECTS)) $(STUBS)
	$(PIP) --no-deps --no-build-isolation $(patsubst %,-e %,$(PYTHON_PROJECTS))
	@touch $@

# After the others, since two runs of pip must not change one environment at a time. One profile is installed at a time.
$(VENV)/.commands-$(PROFILE): $(WHEELS)/launcher/.built $(WHEELS)/router/.built $(VENV)/.dependencies $(VENV)/.python
	rm -f $(VENV)/.commands-*
	$(PIP) --no-deps --force-reinstall $(WHEELS)/launcher/*.whl $(WHEELS)/router/*.whl
	@touch $@

# Not part of install: serving does not need it. The command is in .venv/bin; see docs/benchmark.md.
benchmark: | $(VENV)/bin/python ## Build the benchmark into .venv/bin; see docs/benchmark.md
	cargo build --quiet --release --locked -p text-generation-benchmark
	install target/release/text-generation-benchmark $(BIN)/

# --- distribution -----------------------------------------------------------------------------------------------------

wheel: $(VENV)/.python ## Build wheels to distribute into dist/
	rm -rf dist && mkdir -p dist
	for crate in launcher router/python; do \
	    $(BIN)/maturin build --quiet --release --locked -m $$crate/Cargo.toml -o dist || exit 1; \
	done
	for project in $(PYTHON_PROJECTS); do \
	    $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist ./$$project || exit 1; \
	done
	@ls dist

# Not part of install: the page's libraries are checked in. It needs Node with npm; see docs/ui.md.
ui-libraries: ## Pack the libraries of the page anew
	cd router/http/libraries && npm ci --silent --no-audit --no-fund && node pack.js

# --- checks, cheapest first -------------------------------------------------------------------------------------------

# What is installed comes before the cheapest, since pip unpacks while cargo compiles.
test: install lint test-rust test-client test-benchmark test-router test-server test-kernels test-aot test-integration ## Check everything that every change must pass

lint: lint-features $(VENV)/.dev-dependencies $(VENV)/.python ## Check formatting, imports, types and clippy
	cargo fmt --all --check
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/python tools/circles.py
	$(BIN)/python tools/dependencies.py
	$(BIN)/python tools/file_map.py --check
	$(BIN)/python tools/kernel_table.py --check
	$(BIN)/python tools/versions.py
	cd kernels && ../$(BIN)/lint-imports --no-cache
	cd server && ../$(BIN)/lint-imports --no-cache
	printf '%s\n' server kernels router/python clients/python models/demo models/demo-vision | \
	    xargs -P 2 -I '{}' $(BIN)/pyright --pythonpath $(BIN)/python -p '{}'
	cargo clippy --quiet --locked --workspace --all-targets -- -D warnings

# Known vulnerabilities, from the advisory databases: it needs a network, cargo-deny and pip-audit.
audit: $(VENV)/.dev-dependencies ## Look for known vulnerabilities; needs a network, cargo-deny and pip-audit
	cargo deny check
	pip-audit --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# The programs are built with the features that the tests give their dependencies, so that both share what is compiled.
lint-features:
	@packages() { cargo tree --locked --prefix none --format '{p} {f}' "$$@" | sed 's/ ([*])$$//' | sort -u; }; \
	tests=$$(packages --workspace); \
	for program in launcher router-python; do \
	    if packages -e normal,no-proc-macro -p text-generation-$$program | grep -vxF "$$tests"; then \
	        echo "features/Cargo.toml lacks what the tests give these packages of $$program"; exit 1; \
	    fi; \
	done

# One test of formats reads the files of TRL.
test-rust: $(VENV)/.dev-dependencies ## Test the crates
	cargo test --quiet --locked --workspace

test-client: $(VENV)/.dev-dependencies $(VENV)/.python ## Test the Python client
	$(BIN)/python -m pytest -q clients/python/tests

# The command is tested with the other crates.
test-benchmark: $(VENV)/.dev-dependencies ## Test the benchmark's models
	cd benchmark/models && ../../$(BIN)/python -m pytest -q tests

test-router: install $(VENV)/.dev-dependencies ## Test the router's Python package
	$(BIN)/python -m pytest -q router/python/tests

# Tests that compute or compile all the time, and share nothing, take every core.
SIDE_BY_SIDE := -n auto --maxprocesses 8 --dist worksteal

# Each of these also has the tests of operators, in one run with those of the server.
# Models of the tests are so small that more threads than one would wait for each other.
test-server: $(VENV)/.dev-dependencies $(VENV)/.python ## Test the shards
	cd server && OMP_NUM_THREADS=1 ../$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -c pyproject.toml tests ../kernels/tests \
	    --ignore tests/aot --ignore tests/interpreter --ignore ../kernels/tests/aot --ignore ../kernels/tests/interpreter

# The interpreter is chosen when triton is imported, so its tests have processes of their own.
test-kernels: $(VENV)/.dev-dependencies $(VENV)/.python ## Test kernels in Triton's interpreter
	cd server && TRITON_INTERPRET=1 ../$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -c pyproject.toml tests/interpreter ../kernels/tests/interpreter

test-aot: $(VENV)/.dev-dependencies $(VENV)/.python ## Compile kernels for the cards
	cd server && ../$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -c pyproject.toml tests/aot ../kernels/tests/aot

# Servers start on one core and answer on little: two files at a time.
test-integration: install $(VENV)/.dev-dependencies ## Test whole servers with the demo model
	$(BIN)/python -m pytest -q -n 2 --dist loadfile integration-tests

# Clients of others: test-integration has the most used, this has all, and requests made up from the OpenAPI document.
test-clients: install $(VENV)/.dev-dependencies ## Test every client; see docs/clients.md
	$(BIN)/python -m pytest -q integration-tests/test_clients.py --all-clients

# Not part of test: the routers are 258 MB; see docs/routers.md.
test-routers: install $(VENV)/.dev-dependencies target/routers-venv/.installed ## Test routers of others before several servers; see docs/routers.md
	PATH='$(CURDIR)/target/routers-venv/bin':"$$PATH" $(BIN)/python -m pytest -q integration-tests/routers.py

target/routers-venv/.installed: integration-tests/requirements-routers.txt | $(VENV)/bin/python
	rm -rf $(@D)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# Not part of test: Codex and Claude Code, over a mock model. It needs Node 22 or later with npm; see docs/clients.md.
test-agents: target/agent-packages/.installed ## Test coding agents; needs Node 22; see docs/clients.md
	TEXT_GENERATION_AGENTS=$(CURDIR)/target/agent-packages/node_modules/.bin cargo test --quiet --locked -p text-generation-http --test agents -- --ignored terminal

target/agent-packages/.installed: integration-tests/agents/package.json integration-tests/agents/package-lock.json
	rm -rf $(@D)
	mkdir -p $(@D)
	cp $^ $(@D)
	cd $(@D) && npm ci --silent --no-audit --no-fund
	@touch $@

# Not part of test: parsers of tool calls by others bring 230 crates that nothing else needs; see docs/tools.md.
test-formats: export TIKTOKEN_ENCODINGS_BASE := $(CURDIR)/target/formats-oracles/vocabulary
test-formats: ## Compare the parsers of tool calls with those of others; see docs/tools.md
	cargo fmt --check --manifest-path router/formats/oracles/Cargo.toml
	cargo test --quiet --locked --manifest-path router/formats/oracles/Cargo.toml --target-dir target/formats-oracles

# Not part of test: it needs a Chromium, which it takes from the variable CHROMIUM or the path; see docs/ui.md.
test-ui: install $(VENV)/.dev-dependencies target/ui-packages/.installed ## Test the page in a Chromium; see docs/ui.md
	PYTHONPATH=target/ui-packages $(BIN)/python -m pytest -q integration-tests/ui.py integration-tests/ui_chat.py integration-tests/ui_images.py integration-tests/ui_layout.py

# Not part of test: it needs helm on the path; see docs/kubernetes.md.
test-chart: target/chart-packages/.installed ## Test the chart for Kubernetes; needs helm; see docs/kubernetes.md
	PYTHONPATH=target/chart-packages $(BIN)/python -m pytest -q deploy/kubernetes/tests

target/chart-packages/.installed: deploy/kubernetes/tests/requirements.txt | $(VENV)/bin/python
	rm -rf $(@D)
	$(PIP) --target $(@D) -r $<
	@touch $@

# Not part of test: it needs podman, helm and an image, IMAGE=...; see docs/container.md.
test-image: $(VENV)/.dev-dependencies ## Test the image IMAGE; needs podman and helm; see docs/container.md
	PYTHONPATH=integration-tests $(BIN)/python -m pytest -q deploy/container/tests

# Not part of test: Ray is 500 MB. It has an environment of its own, for the servers it starts have other pins.
test-ray: install target/ray-venv/.installed ## Test Ray Serve; see docs/ray.md
	target/ray-venv/bin/python -m pytest -q -W ignore deploy/ray/tests

target/ray-venv/.installed: deploy/ray/tests/requirements.txt | $(VENV)/bin/python
	rm -rf $(@D)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# Apart from .venv, whose pins are none of its business.
target/ui-packages/.installed: integration-tests/requirements-ui.txt | $(VENV)/bin/python
	rm -rf $(@D)
	$(PIP) --target $(@D) -r $<
	@touch $@

# Prints JSON; keep what a page cites in benchmark/results/ with the machine it ran on, through benchmark/compact.py.
bench-router: ## Time streaming
	cargo bench --quiet --locked -p text-generation-http --bench streaming

bench-bodies: ## Time bodies with images, and the streams beside them
	cargo bench --quiet --locked -p text-generation-http --bench bodies

bench-traces: ## Time what traces cost
	cargo bench --quiet --locked -p text-generation-http --bench traces

bench-client: ## Time the benchmark's own client
	cargo bench --quiet --locked -p text-generation-benchmark --bench client

bench-encode: ## Time the tokenizer
	cargo bench --quiet --locked -p text-generation-core --bench encode

bench-parse: ## Time the parser of tool calls
	cargo bench --quiet --locked -p text-generation-formats --bench parse

bench-kv-pool: ## Time the slots with their prefix tree
	cargo bench --quiet --locked -p text-generation-core --bench kv_pool

bench-policy: ## Time the planning of steps
	cargo bench --quiet --locked -p text-generation-core --bench policy

# --- the rest ---------------------------------------------------------------------------------------------------------

fmt: $(VENV)/.dev-dependencies ## Repair formatting
	cargo fmt --all
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

file-map: ## Write docs/files.md from the first sentence of each source file
	@$(PYTHON) tools/file_map.py

kernel-table: | $(VENV)/.python ## Write docs/kernels.md from what ladders and launchers say of kernels
	@$(BIN)/python tools/kernel_table.py

clean: ## Remove what was built and installed
	rm -rf $(VENV) $(CLIENT_VENVS) target dist
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -f $(PACKAGE)/pb/generate_pb2*
	rm -rf $(patsubst %,%/build,$(PYTHON_PROJECTS)) $(patsubst %,%/*.egg-info,$(PYTHON_PROJECTS))
