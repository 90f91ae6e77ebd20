#!/usr/bin/env bash
# image.sh TAG [TARGET]: build the image, or another target of the Dockerfile, with the first container builder that works here.
# With SIGN_KEY, a file, also save it as dist/NAME.oci.tar and sign that (generate/image_signature.py).
set -euo pipefail
cd "$(dirname "$0")/.."
tag="${1:?usage: image.sh TAG [TARGET]}" target="${2:-runtime}"
name=${tag##*/} name=${name%%[:@]*}
archive=dist/$name.oci.tar

if command -v docker > /dev/null && docker info > /dev/null 2>&1; then
	build=(docker build -t "$tag" --target "$target" .) save=(docker save -o "$archive" "$tag")
elif command -v podman > /dev/null; then
	build=(podman build -t "$tag" --target "$target" .) save=(podman save --format oci-archive -o "$archive" "$tag")
# Java's package writes its certificates: over those of the host, and none of it stays.
elif command -v buildah > /dev/null; then
	build=(tests/cluster/image-build . "$tag" --target "$target" --volume /etc/ssl/certs:/etc/ssl/certs:O)
	save=(tests/cluster/image-save "$tag" "$archive")
else
	echo "no container builder found: install docker, podman or buildah, or run tests/cluster/build first" >&2
	exit 1
fi

"${build[@]}"
if [[ -n ${SIGN_KEY:-} ]]; then
	mkdir -p dist
	rm -f "$archive" "$archive.payload.json" "$archive.sig"
	"${save[@]}"
	"${PYTHON:-python3}" generate/image_signature.py sign "$archive" --key "$SIGN_KEY" --image "$tag"
fi
