#!/usr/bin/env bash
# wheel.sh: build both wheels, install them with the locked dependencies into an empty environment, and start them there:
# with the native core, and without it.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cargo > /dev/null || { echo "the native wheel cannot be built: install cargo (Rust) and start again" >&2; exit 1; }
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m hatchling build -t wheel -d "$work/dist" > /dev/null
.venv/bin/maturin build --quiet --release --locked -m native/Cargo.toml -o "$work/dist"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r locks/runtime.txt
# The extra names the other wheel, which is beside it.
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --no-index --find-links "$work/dist" 'brokerset[native]'
cd "$work"
export BROKERSET_NATIVE=require
"$work/venv/bin/brokerset" --version | tee "$work/version"
grep -qF "native core: on (" "$work/version"
"$work/venv/bin/brokerset" demo --count 1000
export BROKERSET_NATIVE=off
"$work/venv/bin/brokerset" --version | tail -1
"$work/venv/bin/brokerset" demo --count 300
unset BROKERSET_NATIVE
# The kubectl plugin says which extra it needs, and with that only misses a cluster.
export KUBECONFIG="$work/none"
{ "$work/venv/bin/kubectl-brokerset" status 2>&1 || true; } | grep -F "pip install 'brokerset[kubectl]'"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$OLDPWD/locks/kubectl.txt"
{ "$work/venv/bin/kubectl-brokerset" status 2>&1 || true; } | grep -F "there is no kubeconfig $work/none"
echo "the wheels install and run on their own"
