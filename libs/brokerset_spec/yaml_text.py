"""Reads one YAML document strictly: no aliases, no repeated keys, no other types than JSON has."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import yaml

TEXT_SIZE_MAX: Final = 1024 * 1024
"""Most characters of a document; Kubernetes accepts 1.5 MiB for an object."""

DEPTH_MAX: Final = 40
"""Deepest nesting that is read."""


class YamlProblem(ValueError):
    """The text is not one plain YAML document; the message says where and why."""


class _StrictLoader(yaml.SafeLoader):
    """Refuses what a manifest never needs and what can be used to make a small text huge."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]  # so in its stubs
            raise YamlProblem(f"line {line}: aliases (*name) are not read; write it out")
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise YamlProblem(f"is nested more than {DEPTH_MAX} levels deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag != "tag:yaml.org,2002:str":
                raise YamlProblem(f"line {line}: the name {key_node.value!r} is not a text; put it in quotes")
            if key_node.value in seen:
                raise YamlProblem(f"line {line}: {key_node.value} is there twice; keep one")
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


# Dates would arrive as objects; a manifest wants them as they were written.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str) -> Any:
    """Return the one document in `text`; raises `YamlProblem` for anything else."""
    if len(text) > TEXT_SIZE_MAX:
        raise YamlProblem(f"is longer than {TEXT_SIZE_MAX} characters")
    try:
        loader = _StrictLoader(text)
    except yaml.reader.ReaderError as error:
        raise YamlProblem(f"character {error.position} cannot stand in YAML") from None
    try:
        document = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        if "expected a single document" in (error.context or ""):
            raise YamlProblem(f"{where}there is more than one document; keep the BrokerSet") from None
        raise YamlProblem(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise YamlProblem(str(error).replace("\n", " ")) from None
    finally:
        loader.dispose()
    return document
