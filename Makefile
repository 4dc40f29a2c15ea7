# RayMQ's make targets. A fresh machine needs Python 3.11 or newer and make; everything else goes into .venv.
# All paths are relative, so that the tree may stand anywhere, also under a path with a space.

# The folders at the root that are installed as raymq.<folder> (tests/unit/test_packaging.py compares with pyproject.toml).
FOLDERS := storage actors client spark_bridge cluster demo configs datasets

# make env PYTHON=/path/to/python3.12 takes that interpreter; without it the first suitable one in PATH.
PYTHON ?=
# make test-unit ARGS="-k record -x" hands more arguments to pytest, make demo ARGS="--json" to the demo.
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.complete
PYTEST = $(PY) -m pytest

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# A user's own settings must not lead around the hashes or out of the virtual environment.
unexport PIP_USER PIP_TARGET PIP_REQUIRE_VIRTUALENV PYTHONHOME PYTHONPATH

.DEFAULT_GOAL := help
.PHONY: help env demo test test-unit test-interop test-rocketmq lint fix types bench bench-age bench-consume bench-produce bench-store soak lock links clean distclean

help:
	@echo "make env        the virtual environment .venv with everything that requirements.lock names"
	@echo "make demo       the whole way of a data set: topic, consumer, retries, dead letters, Spark"
	@echo "make test       lint, types and the whole test suite (test-unit: only the tests without Ray)"
	@echo "make test-interop  RocketMQ's Java client, admin client, mqadmin and Go client against a cluster (needs Maven, Go)"
	@echo "make test-rocketmq RocketMQ's own tests against a cluster (needs Maven; ARGS=--list, ARGS='pop OffsetResetIT')"
	@echo "make lint types the checks alone; make fix formats and repairs what can be repaired"
	@echo "make bench soak the measurements; the long endurance test"
	@echo "make bench-consume the consumers beside a socket, Kafka, RabbitMQ and Redis (ARGS=--json for JSON, ARGS='--only pull --size 100')"
	@echo "make bench-produce the producer beside an echo, a socket, Ray, Redis and Kafka (ARGS=--json for JSON, ARGS=--own)"
	@echo "make bench-store the store beside memcpy, pwrite and fdatasync (ARGS=--json for JSON, ARGS=--quick)"
	@echo "make bench-age an old broker: 10,000 topics, a million timers; its loop's longest stop (ARGS=--quick, ARGS=--json)"
	@echo "make lock       resolve pyproject.toml anew into requirements.lock"
	@echo "make clean      caches and build outputs; make distclean: .venv too"

env: $(STAMP)
	@:

# Made anew: in a tree that was moved or copied (scripts point to the old place), and for another PYTHON.
ifneq ($(shell test -x $(PY) && cat $(VENV)/.place 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif
ifneq ($(PYTHON),)
ifneq ($(shell "$(PYTHON)" --version 2>&1),$(shell $(PY) --version 2>&1))
.PHONY: $(STAMP)
endif
endif

# Shell lines that set $python: the first of 3.11 to 3.13, else a newer one (not tested).
define find_python
set -e; \
suits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, int(sys.argv[1])))'; \
python=; \
for upper in 14 99; do \
    for each in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11); do \
        if [ -z "$$python" ] && "$$each" -c "$$suits" $$upper 2>/dev/null; then python=$$each; fi; \
    done; \
done; \
if [ -z "$$python" ]; then \
    echo "RayMQ needs Python 3.11 or newer, and $(if $(PYTHON),$(PYTHON) is not,none of python3 and python3.11 to python3.13 in PATH is)." >&2; \
    echo "Install one, or name it: make env PYTHON=/path/to/python3.11" >&2; \
    exit 1; \
fi
endef

$(STAMP): requirements.lock pyproject.toml $(wildcard native/*.* native/raymq_native/*.p* native/raymq_native/*.h)
	@$(find_python); \
	if [ ! -x $(PY) ] || [ "$$(cat $(VENV)/.place 2>/dev/null)" != "$$(pwd -P)" ] \
	    || { [ -n "$(PYTHON)" ] && [ "$$("$$python" --version)" != "$$($(PY) --version)" ]; }; then \
	    echo "env: .venv with $$("$$python" --version) ($$(command -v "$$python"))"; \
	    "$$python" -m venv --clear $(VENV); \
	    pwd -P > $(VENV)/.place; \
	fi
	@rm -f $(STAMP) $(VENV)/.failed
	@# pyspark comes as source and is built here: by the setuptools of the lock, not by one that pip would fetch unchecked.
	@awk '/^[^ #]/ { keep = /^(setuptools|wheel)==/ } keep' requirements.lock > $(VENV)/build-tools.lock
	@echo "env: packages of requirements.lock (550 MB where pip's cache is empty; details in $(VENV)/install.log)"
	@{ $(PY) -m pip install --require-hashes -r $(VENV)/build-tools.lock \
	    && $(PY) -m pip install --require-hashes --no-build-isolation -r requirements.lock \
	    || touch $(VENV)/.failed; } 2>&1 | tee $(VENV)/install.log | awk \
	    '/^Collecting/ { print "  " $$2; fflush() } /^ *Building wheel for.*started/ { print "  building " $$4; fflush() } \
    /^Installing/ { print "  unpacking"; fflush() } /^ERROR/ { print; fflush() }'
	@if [ -e $(VENV)/.failed ]; then echo "env: pip failed, see $(VENV)/install.log" >&2; exit 1; fi
	@echo "env: raymq itself, editable"
	@$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@if command -v "$${CC:-cc}" >/dev/null; then \
	    echo "env: raymq-native, compiled"; \
	    $(PY) -m pip install --quiet --no-deps --no-build-isolation --force-reinstall ./native \
	        || echo "env: it could not be compiled (are Python's headers there?); NumPy does its work and takes longer"; \
	else \
	    echo "env: there is no C compiler; raymq-native is left out, NumPy does its work and takes longer"; \
	fi
	@$(MAKE) --no-print-directory links
	@touch $(STAMP)
	@echo "env: ready ($(PY), $(VENV)/bin/raymq)"

# Type checkers do not understand the mapping of root folders into the package raymq; they see it through links.
links:
	@mkdir -p .links/raymq
	@for folder in $(FOLDERS); do ln -sfn "../../$$folder" ".links/raymq/$$folder"; done

demo: env
	@$(VENV)/bin/raymq demo $(ARGS)

# One after the other also under make -j, and pytest last: its summary is what one wants to read.
# Two processes: one takes all tests that start clusters (tests/conftest.py), in the order of their folders. ARGS="-n 0" for one.
test: env
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(PYTEST) -n 2 --dist loadgroup --no-loadscope-reorder $(ARGS)

test-unit: env
	@$(PYTEST) tests/unit $(ARGS)

lint: env
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

fix: env
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

types: env links
	@$(PY) -m mypy

bench-consume: env
	@$(PY) tests/bench/bench_consume.py $(ARGS)

bench-produce: env
	@$(PY) tests/bench/bench_produce.py $(ARGS)

# RocketMQ's own clients and tools against a cluster of ours; Maven and a JDK are needed, and Go for rocketmq-client-go.
test-interop: env
	@$(PYTEST) tests/interop/test_java_suite.py tests/interop/test_go_client.py -m interop -s $(ARGS)

# RocketMQ's own test module against a cluster of ours, a JVM for each of its 59 classes; see tests/interop/rocketmq.
test-rocketmq: env
	@$(PY) -m tests.interop.rocketmq.run $(ARGS)

bench-store: env
	@$(PY) tests/bench/bench_store.py $(ARGS)

bench-age: env
	@$(PY) tests/bench/bench_age.py $(ARGS)

bench: env
	@set -e; for each in tests/bench/bench_*.py; do echo "bench: $$each"; $(PY) "$$each" $(ARGS); done

soak: env
	@$(PYTEST) -m soak -s $(ARGS)

# Without the extra uvloop: what is tested is asyncio. uv resolves for every Python and platform at once, which pip cannot; it lives in a directory of its own and is not
# needed to install. --upgrade takes the newest versions that pyproject.toml allows. No index or host gets into the file.
lock:
	@$(find_python); "$$python" -m venv --clear .lock-env
	@.lock-env/bin/python -m pip install --quiet "uv>=0.9"
	@.lock-env/bin/uv pip compile pyproject.toml --extra spark --extra dev --universal --python-version 3.11 --upgrade --quiet \
	    --generate-hashes --no-emit-index-url --custom-compile-command "make lock" --output-file requirements.lock
	@rm -rf .lock-env
	@echo "lock: requirements.lock is new; make env installs it"

clean:
	rm -rf build dist *.egg-info native/build native/*.egg-info native/raymq_native/*.c .links .lock-env .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
