# The names of the targets are fixed: CI and the documents call them.
PY ?= python3
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)
SEEDS ?= 200
FUZZ ?= 1000000
CRASHES ?= 200
ROUNDS ?= 20
INTEROP ?= core
BENCH ?= small
IMAGE ?= brokerset:dev

.PHONY: help setup lock demo docs format check lint types layers test interop fuzz crash chaos sim coverage evidence bench e2e image wheel full clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "%-10s %s\n", $$1, $$2}'

setup: .venv/.ready  ## make .venv with everything for development, from the locked versions

.venv/.ready: pyproject.toml locks/dev.txt
	test -x .venv/bin/python || $(PY) -m venv .venv
	.venv/bin/python -m pip install -q --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv/bin/python -m pip install -q --require-hashes -r locks/dev.txt
	.venv/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

lock:  ## resolve the dependencies anew into locks/ (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	    pyproject.toml -o locks/runtime.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	    -c locks/runtime.txt --group dev pyproject.toml -o locks/dev.txt

demo: setup  ## the main job: start everything, send 10,000 messages, consume them, show the status, end
	brokerset demo

docs: setup  ## write the documents that are derived from code
	python docs/make_settings.py
	python docs/make_compatibility.py

format: setup  ## rewrite the code in the house format
	ruff format . && ruff check --fix .

lint: setup  ## style and likely bugs
	ruff format --check . && ruff check .

types: setup  ## strict types
	mypy

layers: setup  ## who may import whom
	lint-imports

check: lint types layers  ## format, lint, types, layers

test: setup  ## everything quick
	pytest -q

interop: setup  ## real Java, C++ and Node clients and Java servers against ours (INTEROP=core|all)
	python tests/interop/run.py --size $(INTEROP)

fuzz: setup  ## mutated frames against a live broker and name server (FUZZ=number of frames)
	python tests/faults/fuzz.py --frames $(FUZZ)

crash: setup  ## kill -9 in the middle of writing, many times (CRASHES=number)
	python tests/faults/crash.py --runs $(CRASHES)

chaos: setup  ## processes of controllers and brokers killed, restarted and moved at random (ROUNDS=number)
	python tests/faults/identity_chaos.py --rounds $(ROUNDS)

sim: setup  ## seeded clusters on virtual time (SEEDS=number; from 1000 on with all processors), broken variants
	@if [ $(SEEDS) -lt 1000 ]; then set -x; pytest -q tests/simulation --seeds $(SEEDS); \
	else set -x; pytest -q tests/simulation --seeds 200 && python tests/simulation/run.py --seeds $(SEEDS); fi

coverage: setup  ## which lines of raft and controller run under simulation; at least 90 % (SEEDS=number)
	python tests/simulation/run.py --seeds $(SEEDS) --coverage

evidence: setup  ## what a decision says about another library, shown on that library's own code (needs the package index)
	python tests/evidence/raftos.py

bench: setup  ## against Java RocketMQ in one run (BENCH=small|full)
	python tests/bench/run.py --size $(BENCH)

e2e: setup  ## processes started, killed and restarted as a user does
	pytest -q tests/e2e

image:  ## build the container image (IMAGE=tag) with any of docker, podman, buildah
	./tests/image.sh $(IMAGE)

wheel: setup  ## build the wheel, install it into an empty environment, start it
	./tests/wheel.sh

full: check test e2e wheel coverage evidence  ## all of it at full size
	$(MAKE) sim SEEDS=10000
	$(MAKE) interop INTEROP=all
	$(MAKE) fuzz FUZZ=5000000
	$(MAKE) crash CRASHES=500
	$(MAKE) chaos ROUNDS=50
	$(MAKE) bench BENCH=full

clean:  ## remove what the other targets made
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
