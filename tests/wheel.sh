#!/usr/bin/env bash
# wheel.sh: build the wheel, install it with the locked dependencies into an empty environment, and start it there.
set -euo pipefail
cd "$(dirname "$0")/.."
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m hatchling build -t wheel -d "$work/dist" > /dev/null
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r locks/runtime.txt
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$work"/dist/*.whl
cd "$work"
"$work/venv/bin/brokerset" --version
"$work/venv/bin/brokerset" demo --count 1000
# The kubectl plugin says which extra it needs, and with that only misses a cluster.
export KUBECONFIG="$work/none"
{ "$work/venv/bin/kubectl-brokerset" status 2>&1 || true; } | grep -F "pip install 'brokerset[kubectl]'"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$OLDPWD/locks/kubectl.txt"
{ "$work/venv/bin/kubectl-brokerset" status 2>&1 || true; } | grep -F "there is no kubeconfig $work/none"
echo "the wheel installs and runs on its own"
