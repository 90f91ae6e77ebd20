#!/usr/bin/env bash
# image.sh TAG: build the image with the first container builder that works here.
set -euo pipefail
cd "$(dirname "$0")/.."
tag="${1:?usage: image.sh TAG}"
if command -v docker > /dev/null && docker info > /dev/null 2>&1; then exec docker build -t "$tag" --target runtime .; fi
if command -v podman > /dev/null; then exec podman build -t "$tag" --target runtime .; fi
if command -v buildah > /dev/null; then exec tests/cluster/image-build . "$tag" --target runtime; fi
echo "no container builder found: install docker, podman or buildah, or run tests/cluster/build first" >&2
exit 1
