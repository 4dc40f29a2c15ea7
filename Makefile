# RayMQ's make targets. A fresh machine needs Python 3.11 or newer and make; everything else goes into .venv.
# All paths are relative, so that the tree may stand anywhere, also under a path with a space.

# The folders at the root that are installed as raymq.<folder> (tests/unit/test_packaging.py compares with pyproject.toml).
FOLDERS := storage actors client spark_bridge cluster console demo configs datasets

# make env PYTHON=/path/to/python3.12 takes that interpreter; without it the first suitable one in PATH.
PYTHON ?=
# make test-unit ARGS="-k record -x" hands more arguments to pytest, make demo ARGS="--json" to the demo.
ARGS ?=
# Where make dist puts the wheels.
DIST ?= dist

VENV := .venv
LOCK := requirements.lock
# Spark 4.2 cannot stand beside Spark 3.5: what needs it has an environment of its own, made as the other one.
SPARK4 := VENV=.venv-spark4 LOCK=requirements-spark4.lock
PY := $(VENV)/bin/python
STAMP := $(VENV)/.complete
PYTEST = $(PY) -m pytest

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# A user's own settings must not lead around the hashes or out of the virtual environment.
unexport PIP_USER PIP_TARGET PIP_REQUIRE_VIRTUALENV PYTHONHOME PYTHONPATH

.DEFAULT_GOAL := help
.PHONY: help env demo dist docs test test-unit test-long test-nightly test-spark4 test-rayup test-interop test-rocketmq test-proxy lint fix types bench bench-age bench-compare bench-consume bench-idle bench-produce bench-recovery bench-replication bench-scale bench-spark bench-store soak soak-chaos lock links clean distclean

help:
	@echo "make env        the virtual environment .venv with everything that requirements.lock names"
	@echo "make demo       the whole way of a data set: topic, consumer, retries, dead letters, Spark"
	@echo "make test       lint, types and the whole test suite (test-unit: only the tests without Ray)"
	@echo "make test-long  the tests that take long: Spark and its driver killed, upgrades, groups that come and go (not part of make test)"
	@echo "make test-nightly everything that takes longer than make test, a line for each part (ARGS=--list, ARGS='fuzz long')"
	@echo "make test-spark4 the data source of Spark 4.2, in an environment of its own, .venv-spark4 (not part of make test)"
	@echo "make test-interop  RocketMQ's Java client, admin client, mqadmin and Go client against a cluster (needs Maven, Go)"
	@echo "make test-proxy    RocketMQ's proxy in front of a cluster, with the official Python gRPC client (needs Maven, Java)"
	@echo "make test-rocketmq RocketMQ's own tests against a cluster (needs Maven; ARGS=--list, ARGS='pop OffsetResetIT')"
	@echo "make dist       the wheels of raymq and raymq-native, in dist (DIST=FOLDER)"
	@echo "make docs       the documentation as a site, in build/docs; a broken link or reference fails it (ARGS=--help)"
	@echo "make lint types the checks alone; make fix formats and repairs what can be repaired"
	@echo "make bench soak the measurements; the long endurance test"
	@echo "make soak-chaos hosts broken at random under load, and the verdict (ARGS='--kills 200 --seed 7', ARGS=--help; needs Linux, root or user namespaces)"
	@echo "make test-rayup \`ray up configs/ray-up-local.yaml\` on three hosts of its own: install, messages, lost hosts, other names (root; ARGS=--help)"
	@echo "make bench-compare benches of this tree and of another commit in turns (REF=COMMIT, ARGS=--help)"
	@echo "make bench-consume the consumers beside a socket, Kafka, RabbitMQ and Redis (ARGS=--json for JSON, ARGS='--only pull --size 100')"
	@echo "make bench-idle what an idle cluster and 100 idle consumers take, in percent of one core (ARGS=--json)"
	@echo "make bench-produce the producer beside an echo, a socket, Ray, Redis and Kafka (ARGS=--json for JSON, ARGS=--own)"
	@echo "make bench-recovery from SIGKILL of a broker to its next acknowledgement, in parts (ARGS=--json)"
	@echo "make bench-replication one copy beside two replicas (ARGS=--json for JSON, ARGS=--quick)"
	@echo "make bench-scale a large broker beside RocketMQ's, 1 to 4 brokers, and what follows for 100 hosts (ARGS=--json, ARGS=--quick)"
	@echo "make bench-spark topics beside RayDP, Kafka and Parquet under Spark; a stream's latency (ARGS=--json, ARGS=--quick)"
	@echo "make bench-store the store beside memcpy, pwrite and fdatasync (ARGS=--json for JSON, ARGS=--quick)"
	@echo "make bench-age an old broker: 10,000 topics, a million timers; its loop's longest stop (ARGS=--quick, ARGS=--json)"
	@echo "make lock       resolve pyproject.toml anew into requirements.lock"
	@echo "make clean      caches and build outputs; make distclean: .venv and the other environments too"

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

$(STAMP): $(LOCK) pyproject.toml $(wildcard native/*.* native/raymq_native/*.p* native/raymq_native/*.h)
	@$(find_python); \
	if [ ! -x $(PY) ] || [ "$$(cat $(VENV)/.place 2>/dev/null)" != "$$(pwd -P)" ] \
	    || { [ -n "$(PYTHON)" ] && [ "$$("$$python" --version)" != "$$($(PY) --version)" ]; }; then \
	    echo "env: $(VENV) with $$("$$python" --version) ($$(command -v "$$python"))"; \
	    "$$python" -m venv --clear $(VENV); \
	    pwd -P > $(VENV)/.place; \
	fi
	@rm -f $(STAMP) $(VENV)/.failed
	@# pyspark comes as source and is built here: by the setuptools of the lock, not by one that pip would fetch unchecked.
	@awk '/^[^ #]/ { keep = /^(setuptools|wheel)==/ } keep' $(LOCK) > $(VENV)/build-tools.lock
	@echo "env: packages of $(LOCK) (550 MB where pip's cache is empty; details in $(VENV)/install.log)"
	@{ $(PY) -m pip install --require-hashes -r $(VENV)/build-tools.lock \
	    && $(PY) -m pip install --require-hashes --no-build-isolation -r $(LOCK) \
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

# pytest's summary is the last thing to read, unless the types are wrong: they are looked at beside the tests.
# Five processes, since many of them wait (tests/xdist_scheduler.py); ARGS="-n 0" for one. Of sweeps some cases, and compiled code
# only where there is any (tests/sweep_sampling.py); make test-nightly runs the rest.
test: env
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types >$(VENV)/types.log 2>&1 & types=$$!; \
	$(PYTEST) -n 5 --no-loadscope-reorder $(ARGS); tests=$$?; \
	wait $$types || { cat $(VENV)/types.log; exit 1; }; \
	exit $$tests

test-unit: env
	@$(PYTEST) tests/unit $(ARGS)

test-long: env
	@$(PYTEST) -m "long and not soak" -n 2 --no-loadscope-reorder $(ARGS)

# Long tests, whole sweeps, soaks, fuzz, NumPy, Spark 4, other Pythons, RocketMQ's clients and tests, ray up: tests/nightly.py.
test-nightly: env
	@$(PY) -m tests.nightly $(ARGS)

test-spark4:
	@$(MAKE) --no-print-directory $(SPARK4) env
	@.venv-spark4/bin/python -m pytest tests/spark4 $(ARGS)

lint: env
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

fix: env
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

types: env links
	@$(PY) -m mypy

# Built in an environment of pip's own, from a copy, so that nothing is left in the tree.
dist: env
	@rm -rf build/dist && mkdir -p build/dist "$(DIST)"
	@cp -r $(FOLDERS) native pyproject.toml README.md LICENSE MANIFEST.in build/dist
	@find build/dist -name __pycache__ -type d -prune -exec rm -rf {} +
	@$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$(DIST)" build/dist build/dist/native
	@rm -rf build/dist
	@ls -1 "$(DIST)"/*.whl

# Docstrings are read through the links that type checkers use.
docs: env links
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build $(ARGS)
	@echo "docs: build/docs/index.html"

# Beside another commit: make bench-compare REF=HEAD~20 ARGS="produce --rounds 5 --with '--own --size 100'"
bench-compare: env
	@$(PY) -m tests.bench.compare $(REF) $(ARGS)

bench-idle: env
	@$(PY) tests/bench/bench_idle.py $(ARGS)

bench-consume: env
	@$(PY) tests/bench/bench_consume.py $(ARGS)

bench-recovery: env
	@$(PY) tests/bench/bench_recovery.py $(ARGS)

bench-produce: env
	@$(PY) tests/bench/bench_produce.py $(ARGS)

# RocketMQ's own clients and tools against a cluster of ours; Maven and a JDK are needed, and Go for rocketmq-client-go.
test-interop: env
	@$(PYTEST) tests/interop --ignore=tests/interop/test_proxy.py -m interop -s $(ARGS)

# RocketMQ's proxy in front of name server and brokers of ours, used by the official gRPC clients of Python and Java.
test-proxy: env
	@$(PYTEST) tests/interop/test_proxy.py -m interop -s $(ARGS)

# RocketMQ's own test module against a cluster of ours, a JVM for each of its 59 classes; see tests/interop/rocketmq.
test-rocketmq: env
	@$(PY) -m tests.interop.rocketmq.run $(ARGS)

bench-replication: env
	@$(PY) tests/bench/bench_replication.py $(ARGS)

bench-scale: env
	@$(PY) tests/bench/bench_scale.py $(ARGS)

bench-spark: env
	@$(PY) tests/bench/bench_spark.py $(ARGS)

bench-store: env
	@$(PY) tests/bench/bench_store.py $(ARGS)

bench-age: env
	@$(PY) tests/bench/bench_age.py $(ARGS)

bench: env
	@set -e; for each in tests/bench/bench_*.py; do echo "bench: $$each"; $(PY) "$$each" $(ARGS); done

soak: env
	@$(PYTEST) -m "soak or sweep" --whole-sweeps -s $(ARGS)

# The whole of it: with pip on each host, and hosts with other addresses. make soak runs a shorter form.
test-rayup: env
	@$(PY) -m tests.rayup.run $(or $(ARGS),--install --long)

soak-chaos: env
	@$(PY) -m tests.chaos.failover.run $(or $(ARGS),--kills 200)

# Without the extra uvloop: what is tested is asyncio. uv resolves for every Python and platform at once, which pip cannot; it lives in a directory of its own and is not
# needed to install. --upgrade takes the newest versions that pyproject.toml allows. No index or host gets into the file.
lock:
	@$(find_python); "$$python" -m venv --clear .lock-env
	@.lock-env/bin/python -m pip install --quiet "uv>=0.9"
	@set -e; for each in "spark requirements.lock" "spark4 requirements-spark4.lock"; do \
	    set -- $$each; \
	    .lock-env/bin/uv pip compile pyproject.toml --extra $$1 --extra dev --universal --python-version 3.11 --upgrade --quiet \
	        --generate-hashes --no-emit-index-url --custom-compile-command "make lock" --output-file $$2; \
	done
	@rm -rf .lock-env
	@echo "lock: requirements.lock and requirements-spark4.lock are new; make env and make test-spark4 install them"

clean:
	rm -rf build dist *.egg-info native/build native/*.egg-info native/raymq_native/*.c .links .lock-env .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path "./.venv*" -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venv-spark4 .venv-python*
