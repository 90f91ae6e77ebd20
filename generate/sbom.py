"""A bill of materials in CycloneDX 1.6 JSON: `sbom.py LOCK [--cargo Cargo.lock] > brokerset.cdx.json`.

What an image has of Python (a lock file with hashes) and of Rust crates (in the native core). It is made of
the locks alone, so it is the same each time and needs only the standard library: the image's build runs it in
a stage where nothing else is. What the base image brings is in none of these locks.

Not by cyclonedx-python-lib: the build would need it and what it needs, to write a table as JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

Component = dict[str, Any]

_PINNED: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)\s*(?:;\s*(?P<marker>[^\\]+))?"
)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAMESPACE: Final = uuid.UUID("6f0c5b5a-3c0e-5d0a-9d55-6c1c6f1b7a41")
"""Of serial numbers: the same components give the same one."""


def python_components(lock: str) -> list[Component]:
    """The packages that `lock` pins. Raises `ValueError` for a line that is something else, or has no hash.

    A pin has a hash for each file that may be installed (wheels of platforms, the source).
    Those of a component itself would all be of one file, so each is named with a distribution.
    """
    found = []
    for line in lock.replace("\\\n", " ").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pin, hashes = _PINNED.match(line), _HASH.findall(line)
        if pin is None or not hashes:
            raise ValueError(f"not a pinned package with hashes: {line.strip()[:80]!r}; run `make lock`")
        name, version = re.sub(r"[-_.]+", "-", pin["name"]).lower(), pin["version"]
        component = _component("pypi", name, version)
        component["externalReferences"] = [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{name}/{quote(version)}/",
                "hashes": [{"alg": "SHA-256", "content": each}],
            }
            for each in hashes
        ]
        if pin["marker"]:
            marker = pin["marker"].split("--hash")[0].strip()
            component["properties"] = [{"name": "brokerset:marker", "value": marker}]
        found.append(component)
    return found


def rust_components(lock: str) -> list[Component]:
    """The crates of a `Cargo.lock` that come from a registry: all but our own."""
    found = []
    for package in tomllib.loads(lock)["package"]:
        if "source" not in package:
            continue
        component = _component("cargo", package["name"], package["version"])
        component["hashes"] = [{"alg": "SHA-256", "content": package["checksum"]}]
        found.append(component)
    return found


def bill(name: str, version: str, components: Iterable[Component]) -> dict[str, Any]:
    """The whole document, of what `name` consists of."""
    ordered = sorted(components, key=lambda component: component["purl"])
    licenses = [{"license": {"id": "Apache-2.0"}}]
    subject = {"type": "application", "bom-ref": name, "name": name, "version": version, "licenses": licenses}
    serial = uuid.uuid5(_NAMESPACE, json.dumps([subject, ordered], sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": subject},
        "components": ordered,
    }


def _component(kind: str, name: str, version: str) -> Component:
    purl = f"pkg:{kind}/{name}@{quote(version)}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lock", type=Path, help="a lock file of Python packages, with hashes")
    parser.add_argument("--cargo", type=Path, help="the Cargo.lock of the native core")
    parser.add_argument("--project", type=Path, default=Path("pyproject.toml"))
    parser.add_argument("--name", default="brokerset")
    options = parser.parse_args()
    components = python_components(options.lock.read_text())
    if options.cargo is not None:
        components += rust_components(options.cargo.read_text())
    version = tomllib.loads(options.project.read_text())["project"]["version"]
    json.dump(bill(options.name, version, components), sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
