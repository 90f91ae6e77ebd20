# The names of the targets are fixed: CI and the documents call them.
PY ?= python3
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)
# Without bytecode each run of the tests, and each process that they start, would compile everything again.
export PYTHONDONTWRITEBYTECODE :=
SEEDS ?= 200
FUZZ ?= 1000000
FUZZ_SECONDS ?= 60
CONNECTIONS ?= 5000
CRASHES ?= 200
ROUNDS ?= 20
CUT_RUNS ?= 1
DISKS ?= 10
INTEROP ?= core
BENCH ?= small
FAILOVERS ?= 5
FAILOVER_RATE ?= 100
FAILOVER_KINDS ?= killMaster,stopMaster,killBoth,hangSlave,switchover
IMAGE ?= brokerset:dev
IMAGE_SPARK ?= brokerset-spark:dev
HELM ?= helm
SETS ?= 1000
STOPS ?= --all
WORKERS ?= 2
WITHOUT_NATIVE ?= tests/unit/broker/store tests/unit/formats tests/property/test_store_model.py tests/property/test_store_properties.py \
    tests/property/test_protocol_frames.py tests/integration/broker/test_send_and_pull.py
PROFILE ?= ci
MUTATIONS ?= 0
HISTORIES ?= 60
SECONDS ?= 60
ORDER ?= Strict
CONSUME ?= Exclusive
DAMAGES ?= 10000
RECORDS ?= 6000
CHUNKS ?= 200000
NATIVE_SOURCES := native/Cargo.toml native/Cargo.lock native/pyproject.toml $(wildcard native/*.pyi native/src/*.rs native/src/*/*.rs)

.PHONY: help setup lock demo generate format check lint types layers test test-long test-spark stutter send-paths mutation interop fuzz half-open crash chaos ordered-chaos disks histories dledger-takeover damage network-cuts failover sim coverage evidence bench bench-spark notebook e2e e2e-processes e2e-kubernetes scale-card image image-spark verify-image sbom chart wheel full clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "%-10s %s\n", $$1, $$2}'

setup: .venv/.ready .venv/.native  ## make .venv with everything for development, from the locked versions; builds the native core if there is cargo

.venv/.ready: pyproject.toml locks/dev.txt
	test -x .venv/bin/python || $(PY) -m venv .venv
	.venv/bin/python -m pip install -q --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv/bin/python -m pip install -q --require-hashes -r locks/dev.txt
	.venv/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

# Made only where a core was built: who installs cargo later gets one from the next `make setup`.
.venv/.native: $(NATIVE_SOURCES) native/install | .venv/.ready
	@native/install $@

lock:  ## resolve the dependencies anew into locks/ (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	    pyproject.toml -o locks/runtime.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	    -c locks/runtime.txt --extra operator pyproject.toml -o locks/operator.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	    -c locks/operator.txt --extra kubectl --extra operator --extra outbox --extra spark-fast --extra lake --group dev pyproject.toml -o locks/dev.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	    -c locks/dev.txt --extra kubectl pyproject.toml -o locks/kubectl.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	    -c locks/dev.txt --extra spark-fast --extra lake pyproject.toml -o locks/spark.txt
	printf 'hatchling>=1.27\nmaturin>=1.9,<2\n' | uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	    -c locks/dev.txt - -o locks/build.txt

demo: setup  ## the main job: start everything, send 10,000 messages, consume them, show the status, end
	brokerset demo

notebook: setup  ## open examples/lake.ipynb in the browser: a topic, a stream, a Delta table; installs JupyterLab where it is missing
	jupyter lab --version > /dev/null 2>&1 || .venv/bin/python -m pip install -q --disable-pip-version-check jupyterlab
	jupyter lab examples/lake.ipynb

generate: setup  ## write everything that is made from code: CRDs, the chart's copies, rules, dashboards, tables of documents
	python -m generate

format: setup  ## rewrite the code in the house format
	ruff format . && ruff check --fix .

lint: setup  ## style and likely bugs
	ruff format --check . && ruff check .

types: setup  ## strict types
	mypy

layers: setup  ## who may import whom
	lint-imports

check: lint types layers  ## format, lint, types, layers

.PHONY: native-check native-deny test-python fuzz-native
native-check: setup  ## the native core: format, likely bugs, its unit tests (needs cargo, at best with clippy and rustfmt)
	native/check

native-deny: setup  ## licences, versions and sources of the native core's crates; installs cargo-deny, which takes minutes
	cargo deny --version 2> /dev/null || cargo install --quiet --locked cargo-deny
	cd native && cargo deny --locked check licenses bans sources

test-python: setup  ## the store, sends and pulls without the native core: pure Python serves where there is none
	BROKERSET_NATIVE=off pytest -q -n $(WORKERS) --hypothesis-profile quick -m "not long and not slow" $(WITHOUT_NATIVE)

test: setup  ## everything quick but the simulation, which is `make sim` (WORKERS=processes; TESTS=some of them)
	pytest -q -n $(WORKERS) --dist worksteal --hypothesis-profile quick -m "not long and not slow" --costs --cost-max 15 $(TESTS)

test-long: setup  ## tests that take seconds to a minute each, and properties with all examples (WORKERS, TESTS as above; PROFILE=ci|full)
	pytest -q -n $(WORKERS) --dist worksteal --hypothesis-profile $(PROFILE) --timeout $(if $(filter full,$(PROFILE)),1800,300) \
	    -m "(long or hypothesis) and not slow" --costs $(TESTS)

test-spark: setup  ## those of them that read stores with Spark and its kernels
	$(MAKE) test-long TESTS="tests/unit/spark tests/property/spark tests/integration/spark"

stutter: setup  ## tests whose processes are stopped for up to 2.5 s at random, as a busy machine does (TESTS=some, STOPS=--all one at a time|--together)
	python tests/faults/stalls.py $(STOPS) --every 2.5 --longest 2.5 -- \
	    pytest -v -n $(WORKERS) --dist worksteal -p no:cacheprovider --hypothesis-profile quick -m "not slow" $(or $(TESTS),tests/integration)

send-paths: setup  ## sends through the native core compared with the Python path, byte for byte (CHUNKS=number)
	python tests/property/native/run.py --chunks $(CHUNKS)

mutation: setup  ## deliberate mistakes in copies of the product, each of which something must notice (MUTATIONS=n: some, others each day; WORKERS=at a time)
	python -m tests.mutation.run --count $(MUTATIONS) --workers $(WORKERS)

interop: setup  ## real Java, C++ and Node clients and Java servers against ours (INTEROP=core: without the long suites|all)
	python tests/interop/run.py --size $(INTEROP)

fuzz: setup  ## mutated frames, also signed ones, against a live broker, a name server and the HA ports of a group (FUZZ=number of frames)
	python tests/faults/fuzz.py --frames $(FUZZ)
	python tests/faults/signed_fuzz.py --frames $(FUZZ)
	python tests/faults/signed_fuzz.py --frames $(FUZZ) --slave
	python tests/faults/ha_fuzz.py --frames $(FUZZ)

half-open: setup  ## thousands of connections that never get to the point against each port of a broker, a name server and a controller (CONNECTIONS=to each)
	python tests/faults/half_open.py --connections $(CONNECTIONS)

fuzz-native: setup  ## the byte work of the native core under libFuzzer; needs cargo and c++ (FUZZ_SECONDS=of each target)
	python tests/faults/native_fuzz.py --seconds $(FUZZ_SECONDS)

crash: setup  ## kill -9 in the middle of writing, receiving and cutting, many times (CRASHES=number)
	python tests/faults/crash.py --runs $(CRASHES)
	python tests/faults/follower_crash.py --runs $$(( $(CRASHES) / 2 ))

chaos: setup  ## processes of controllers and brokers killed, hung, fenced and moved at random (ROUNDS=number)
	python tests/faults/identity_chaos.py --rounds $(ROUNDS)
	python tests/faults/group_chaos.py --rounds $(ROUNDS)

ordered-chaos: setup  ## an ordered subject while processes are killed and frozen, links cut, and it is scaled (SECONDS=number, ORDER=Strict|BestTried, CONSUME=Exclusive|Shared)
	python tests/faults/ordered_chaos.py --seconds $(SECONDS) --order $(ORDER) --consume $(CONSUME)

histories: setup  ## reads of real processes during faults, judged for linearizability (HISTORIES=number)
	python tests/faults/read_histories.py --histories $(HISTORIES)

dledger-takeover: setup  ## a store into DLedger mode and out of it, killed at every step (RECORDS=number)
	python tests/faults/dledger_takeover.py --records $(RECORDS)

damage: setup  ## stores of closed, killed and running brokers, damaged at random, under every job (DAMAGES=number)
	python tests/faults/store_damage.py --damages $(DAMAGES)

network-cuts: setup  ## the network cut between each pair of parts of a set, both ways and one way (CUT_RUNS=runs of each cut)
	python tests/faults/network_cuts.py --runs $(CUT_RUNS)

disks: setup  ## brokers on disks that really fail or are full; needs root, loop devices and cc (DISKS=runs of each case)
	python tests/faults/disks.py --runs $(DISKS)

failover: setup  ## gaps and losses of faults under load (FAILOVERS=runs of each kind; FAILOVER_KINDS=a,b; FAILOVER_RATE=transactions, timers and pops a second)
	brokerset bench failover --runs $(FAILOVERS) --kinds $(FAILOVER_KINDS) --transactions $(FAILOVER_RATE) --timers $(FAILOVER_RATE) --pops $(FAILOVER_RATE)

sim: setup  ## seeded clusters on virtual time (SEEDS=number; from 1000 on with all processors), broken variants
	@if [ $(SEEDS) -lt 1000 ]; then set -x; pytest -q -n $(WORKERS) --dist loadgroup tests/simulation --seeds $(SEEDS); \
	else set -x; pytest -q -n $(WORKERS) --dist loadgroup tests/simulation --seeds 200 && python tests/simulation/run.py --seeds $(SEEDS); fi

coverage: setup  ## which lines of raft and controller run under simulation; at least 90 % (SEEDS=number)
	python tests/simulation/run.py --seeds $(SEEDS) --coverage

evidence: setup  ## what a decision says about another library, shown on that library's own code (needs the package index)
	python tests/evidence/raftos.py

bench: setup  ## ours with and without the native core next to Java, in pairs (BENCH=smoke|small|full; smoke: one broker of ours, pure Python)
	python -m tests.bench.run --size $(BENCH) $(if $(filter smoke,$(BENCH)),--sides python)
	python tests/bench/controller.py --size $(if $(filter full,$(BENCH)),full,small --only ours)
ifeq ($(BENCH),full)
	python tests/bench/replication.py --size full --parts catch-up,floors
	python tests/bench/dledger.py --size full
	python tests/bench/failover.py --runs 20
else
	@echo "not measured here: failover, DLedger, and controllers of Java; \`make bench BENCH=full\` does"
endif

bench-spark: setup  ## topics and the lake beside a plain client, jobs on stores beside cp, memory (BENCH=small|full; full: kernels, too)
	python -m tests.bench.spark_run --size $(if $(filter full,$(BENCH)),full,ci)
	$(if $(filter full,$(BENCH)),python tests/bench/spark.py --size full)

e2e: e2e-processes e2e-kubernetes  ## as a user does it: on one machine, and on a real Kubernetes

e2e-processes: setup  ## processes started, killed and restarted as a user does (PROCESSES="-m 'not slow'")
	pytest -q -n $(WORKERS) --dist loadfile tests/e2e --ignore tests/e2e/kubernetes $(PROCESSES)

e2e-kubernetes: setup  ## the chart and the operator on a real cluster: kind, the one of KUBECONFIG, or tests/cluster
	pytest -q tests/unit/chart tests/e2e/kubernetes $(KUBERNETES)

scale-card: setup  ## one operator with many BrokerSets: memory, start-up, rounds, requests when idle (SETS=number)
	python tests/bench/scale_card.py --sets $(SETS)

image: $(if $(SIGN_KEY),setup)  ## build the container image (IMAGE=tag) with any of docker, podman, buildah; sign it (SIGN_KEY=file)
	SIGN_KEY=$(SIGN_KEY) ./tests/image.sh $(IMAGE)

image-spark: $(if $(SIGN_KEY),setup)  ## build the image of jobs on store files, with Java and Spark (IMAGE_SPARK=tag), likewise
	SIGN_KEY=$(SIGN_KEY) ./tests/image.sh $(IMAGE_SPARK) spark

verify-image: setup  ## check that an image was not changed since its release (ARCHIVE=file PUBLIC_KEY=file)
	python generate/image_signature.py verify "$(ARCHIVE)" --key "$(PUBLIC_KEY)"

sbom:  ## what the images have of Python and Rust, from the locks, as CycloneDX JSON in dist/
	mkdir -p dist
	$(PY) generate/sbom.py locks/operator.txt --cargo native/Cargo.lock > dist/brokerset.cdx.json
	$(PY) generate/sbom.py locks/spark.txt --cargo native/Cargo.lock --name brokerset-spark > dist/brokerset-spark.cdx.json

chart: setup  ## check the chart, pack it into dist/ (HELM=program)
	$(HELM) lint --strict charts/brokerset && $(HELM) package charts/brokerset -d dist

wheel: setup  ## build both wheels, install them into an empty environment, start them with and without the native core
	./tests/wheel.sh

full: check native-check native-deny test test-python e2e wheel coverage evidence  ## all of it at full size
	$(MAKE) test-long PROFILE=full
	pytest -q -m slow tests/unit tests/property tests/scenario tests/simulation tests/integration
	$(MAKE) sim SEEDS=10000
	$(MAKE) send-paths CHUNKS=5000000
	$(MAKE) mutation
	$(MAKE) interop INTEROP=all
	$(MAKE) fuzz FUZZ=5000000
	$(MAKE) fuzz-native FUZZ_SECONDS=600
	$(MAKE) half-open
	$(MAKE) crash CRASHES=500
	$(MAKE) dledger-takeover RECORDS=1000000
	$(MAKE) chaos ROUNDS=50
	$(MAKE) ordered-chaos SECONDS=600
	$(MAKE) ordered-chaos SECONDS=300 ORDER=BestTried
	$(MAKE) ordered-chaos SECONDS=300 CONSUME=Shared
	$(MAKE) histories HISTORIES=90
	$(MAKE) network-cuts CUT_RUNS=5
	$(MAKE) disks DISKS=10
	$(MAKE) failover FAILOVERS=100 FAILOVER_KINDS=killMaster,stopMaster,cutMaster,cutSlaves,killLeader,killBoth,hangSlave,switchover
	$(MAKE) bench BENCH=full
	$(MAKE) bench-spark BENCH=full
	$(MAKE) scale-card
	git rev-parse HEAD > .ci/passed

clean:  ## remove what the other targets made
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
