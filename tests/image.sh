#!/usr/bin/env bash
# image.sh TAG [TARGET]: build the image, or another target of the Dockerfile, with the first container builder that works here.
set -euo pipefail
cd "$(dirname "$0")/.."
tag="${1:?usage: image.sh TAG [TARGET]}" target="${2:-runtime}"
if command -v docker > /dev/null && docker info > /dev/null 2>&1; then exec docker build -t "$tag" --target "$target" .; fi
if command -v podman > /dev/null; then exec podman build -t "$tag" --target "$target" .; fi
# Java's package writes its certificates: over those of the host, and none of it stays.
if command -v buildah > /dev/null; then exec tests/cluster/image-build . "$tag" --target "$target" --volume /etc/ssl/certs:/etc/ssl/certs:O; fi
echo "no container builder found: install docker, podman or buildah, or run tests/cluster/build first" >&2
exit 1
