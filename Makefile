# One command a line. `make up` runs the hub, `make test` tests it; both need python3 with pip, and the network once.
PY    ?= python3
VENV  ?= .venv
BOOT  := .boot
UV    := $(BOOT)/bin/uv
INSTALL = $(UV) pip install -q -p
export UV_CACHE_DIR ?= $(CURDIR)/$(BOOT)/cache
export UV_PYTHON_DOWNLOADS := never
export UV_SYSTEM_CERTS := 1
export UV_COMPILE_BYTECODE := 1
export UV_LINK_MODE := copy
unexport PYTHONDONTWRITEBYTECODE

.PHONY: browser demo-model up test check fix bench compare conformance docs screenshots faults journeys mutants lock clean help anew
help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -e 's/:.*## /\t/'
up: $(VENV)/.core  ## run the hub in the foreground; DEMO=1 installs the demo
	$(VENV)/bin/dragoman up $(if $(DEMO),--demo)
test: $(VENV)/.dev .venv-mcp1/.done  ## all tests
	$(VENV)/bin/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder
browser:  ## install the browser that the tests of the console drive (Debian, as root)
	command -v chromium >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; }
check: $(VENV)/.dev  ## format, lint, spelling, types, architecture
	$(VENV)/bin/ruff format --check src tests bench conformance faults examples
	$(VENV)/bin/ruff check src tests bench conformance faults examples
	$(VENV)/bin/codespell
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest -q tests/test_architecture.py tests/test_promises.py tests/test_docs.py tests/test_language.py
	@$(VENV)/bin/python -m tests.module_lengths
	$(VENV)/bin/python -m bench.journeys
fix: $(VENV)/.dev  ## format and mend what can be mended
	$(VENV)/bin/ruff format src tests bench conformance faults examples
	$(VENV)/bin/ruff check --fix src tests bench conformance faults examples
bench: $(VENV)/.dev .venv-bench/.done .venv-fastmcp/.done .venv-mcpproxy/.done .venv-contextforge/.done .venv-dbos/.done  ## beside the peers; writes docs/benchmarks.md
	$(VENV)/bin/python -m bench
FRAMEWORKS := adk beeai crewai langgraph strands
conformance: $(VENV)/.dev .venv-conformance/.done conformance/node_modules/.done .venv-conformance/mcp-source/.done .venv-references/.done .venv-tck/.done .venv-a2asdk03/.done .venv-a2asdk02/.done .venv-pythona2a/.done $(FRAMEWORKS:%=.venv-%/.done)  ## the official suites; writes docs/conformance.md
	$(VENV)/bin/python -m conformance
	$(VENV)/bin/python -m conformance --hubs 2,3
BEFORE ?= HEAD
compare: $(VENV)/.core .venv-bench/.done  ## CPU of a call beside the commit BEFORE=..., interleaved
	rm -rf bench/build/before && git worktree prune && git worktree add -q --detach bench/build/before $(BEFORE)
	$(MAKE) -s -C bench/build/before .venv/.core
	$(VENV)/bin/python -m bench.compare bench/build/before
journeys: $(VENV)/.core  ## how many modules a call crosses
	$(VENV)/bin/python -m bench.journeys
mutants: $(VENV)/.dev .venv-mcp1/.done  ## take each security control out, one by one: its tests must fail; OF="16 Taint" for some
	$(VENV)/bin/python -m tests.mutants -j 2 $(OF)
faults: $(VENV)/.dev  ## long experiments: fuzzing, kill -9, broken disks; writes docs/reliability.md
	$(VENV)/bin/python -m faults
demo-model: $(VENV)/.core .venv-localmodel/.done  ## an agent with a real model on this machine (1.1 GB); writes docs/local-model.md
	$(VENV)/bin/python -m examples.local_model.demo
docs: $(VENV)/.dev  ## write the generated pages again
	$(VENV)/bin/python -m tests.generate_docs
screenshots: $(VENV)/.dev  ## take the pictures of the console again, of every screen in build/console
	DRAGOMAN_REQUIRE_BROWSER=1 DRAGOMAN_SCREENSHOTS=all $(VENV)/bin/python -m pytest -q tests/console/test_console_gallery.py -k accessible
descriptors: $(VENV)/.dev  ## compile the gRPC messages of A2A again, from the official SDK's
	$(VENV)/bin/python -m tests.generate_descriptors
lock: | $(UV)  ## choose versions anew
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 pyproject.toml -o locks/core.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 pyproject.toml --extra postgres --extra redis --extra otel -o locks/cluster.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 pyproject.toml --group dev -o locks/dev.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group mcp1 -o locks/mcp1.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group bench -o locks/bench.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group bench-fastmcp -o locks/fastmcp.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group bench-mcp-proxy -o locks/mcpproxy.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group bench-contextforge -o locks/contextforge.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group conformance -o locks/conformance.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group bench-dbos -o locks/dbos.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group references -o locks/references.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group tck -o locks/tck.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group a2a-sdk-03 -o locks/a2asdk03.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group a2a-sdk-02 -o locks/a2asdk02.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group python-a2a -o locks/pythona2a.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group adk -o locks/adk.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group beeai -o locks/beeai.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group crewai -o locks/crewai.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group langgraph -o locks/langgraph.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group strands -o locks/strands.lock
	$(UV) pip compile -q --universal --generate-hashes --no-header --no-annotate -p 3.11 --group local-model -o locks/localmodel.lock
clean:  ## remove what was installed here; your hub's home stays
	rm -rf .venv .venv-* $(BOOT) conformance/node_modules conformance/build

$(UV):
	$(PY) -m pip install -q --disable-pip-version-check --target $(BOOT) 'uv>=0.8,<1'
# Made anew where its python is gone: an upgrade took it, or the first run was cut short.
$(VENV)/pyvenv.cfg: $(if $(shell test -x $(VENV)/bin/python && echo there),,anew) | $(UV)
	$(UV) venv -q --clear -p $(PY) $(VENV)
$(VENV)/.core: locks/core.lock pyproject.toml $(VENV)/pyvenv.cfg
	$(INSTALL) $(VENV)/bin/python --require-hashes -r locks/core.lock
	$(INSTALL) $(VENV)/bin/python --no-deps -e .
	$(VENV)/bin/python -m compileall -q src
	@touch $@
$(VENV)/.dev: locks/dev.lock pyproject.toml $(VENV)/pyvenv.cfg
	$(INSTALL) $(VENV)/bin/python --require-hashes -r locks/dev.lock
	$(INSTALL) $(VENV)/bin/python --no-deps -e .
	@touch $@ $(VENV)/.core
.venv-%/.done: locks/%.lock | $(UV)
	$(UV) venv -q --clear -p $(PY) .venv-$*
	$(INSTALL) .venv-$*/bin/python --require-hashes -r $<
	@touch $@
# The Python SDK's examples are in its source distribution only; the lock has the hash of both.
.venv-conformance/mcp-source/.done: locks/conformance.lock .venv-conformance/.done
	rm -rf $(@D) && mkdir $(@D)
	awk '/^[a-z]/ {wanted = /^mcp==/} wanted' $< > $(@D)/requirement.txt
	$(PY) -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: --require-hashes -d $(@D) -r $(@D)/requirement.txt
	tar xzf $(@D)/mcp-*.tar.gz -C $(@D) --strip-components 1
	@touch $@
conformance/node_modules/.done: conformance/package-lock.json conformance/.npmrc .venv-conformance/.done
	cd conformance && PATH="$(CURDIR)/.venv-conformance/bin:$$PATH" npm_config_cache="$(CURDIR)/$(BOOT)/npm" npm ci --ignore-scripts --loglevel=error
	@touch $@
