"""The BrokerSet manifest: typed, with every default, and every error at once.

Read a manifest with `read_manifest`. It refuses, by name, what no part of the product serves yet: a
manifest that is accepted is a manifest that is carried out.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from brokerset_spec.broker_settings import NAME_PATTERN, BrokerSettings
from brokerset_spec.setting_fields import SettingValue, setting_fields, unknown_name, value_text
from brokerset_spec.yaml_text import YamlProblem, read_yaml

API_VERSION: Final = "brokerset.io/v1alpha1"
KIND: Final = "BrokerSet"

GROUPS_MAX: Final = 256
"""Most broker groups of one set."""

NAME_LENGTH_MAX: Final = 40
"""Longest name of a set; pods, services and brokers are named after it, and Kubernetes allows 63."""

NAME_SHAPE: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
BROKER_NAME_SHAPE: Final = r"^[%|a-zA-Z0-9_-]{1,127}$"
QUANTITY_SHAPE: Final = r"^[1-9][0-9]*([KMGTPE]i|[kMGTPE])?$"

OWN_SETTINGS: Final[Mapping[str, str]] = {
    "brokerClusterName": "set spec.clusterName instead",
    "brokerName": "set spec.brokerNames instead",
    "brokerId": "ids are handed out and kept by brokerset; leave it out",
    "brokerRole": "roles are given by brokerset; leave it out",
    "brokerIP1": "addresses are chosen by brokerset; leave it out",
    "bindAddress": "addresses are chosen by brokerset; leave it out",
    "listenPort": "ports are chosen by brokerset; leave it out",
    "httpPort": "ports are chosen by brokerset; leave it out",
    "namesrvAddr": "brokerset runs the name servers itself; leave it out",
    "controllerAddr": "brokerset runs the controllers itself; leave it out",
    "fetchControllerAddrByDnsLookup": "brokerset runs the controllers itself; leave it out",
    "ownerUid": "is given by brokerset; leave it out",
    "expectedReplicas": "set spec.replicas instead",
    "storePathRootDir": "folders are chosen by brokerset; leave it out",
    "storePathCommitLog": "folders are chosen by brokerset; leave it out",
    "storePathBrokerIdentity": "folders are chosen by brokerset; leave it out",
    "storePathEpochFile": "folders are chosen by brokerset; leave it out",
    "enableControllerMode": "set spec.replication.mode instead",
}
"""Settings that a manifest may not give under `config`, and what to do instead."""


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, hide_input_in_errors=True
    )


class Metadata(BaseModel):
    """The part that all Kubernetes objects share; what is not used here is let through."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    name: Annotated[str, Field(pattern=NAME_SHAPE, max_length=NAME_LENGTH_MAX)]
    """Name of the set."""


class Replication(_Part):
    """How the brokers of a group keep copies of each other's messages."""

    mode: Literal["controller", "dledger"] = "controller"
    """Who decides which broker of a group is the master."""

    acknowledge: Literal["allInSync", "master"] = "allInSync"
    """Which brokers must have a message before its sender is told that it is stored."""

    min_in_sync_replicas: Annotated[int, Field(ge=1)] | None = None
    """Fewer in-sync brokers than this refuse sends; by default 2 from three replicas on, else 1."""

    unclean_election: bool = False
    """Whether a broker that may lack acknowledged messages can become master when no other is left."""


class ControllersRef(_Part):
    """Another set, whose controllers this one uses."""

    name: Annotated[str, Field(pattern=NAME_SHAPE, max_length=NAME_LENGTH_MAX)]


class Controllers(_Part):
    """The processes that serve names and decide who is master."""

    replicas: Annotated[int, Field(ge=1, le=7)] = 3
    """Number of processes; more than half must live, so an even number survives no more losses."""

    ref: ControllersRef | None = None
    """Use those of another set instead."""


class Storage(_Part):
    """The volume of each broker."""

    size: Annotated[str, Field(pattern=QUANTITY_SHAPE)] = "20Gi"
    """Size of the volume."""

    class_name: str | None = None
    """Storage class; none means the cluster's default."""

    when_deleted: Literal["Retain", "Delete"] = "Retain"
    """What happens to volumes when the set is deleted."""


class Update(_Part):
    """How a change reaches the brokers."""

    strategy: Literal["automatic", "supervised"] = "automatic"
    """Whether each step waits for a person."""


class SecretRef(_Part):
    """A Kubernetes secret."""

    secret_name: str | None = None
    """Name of the secret; none switches the feature off."""


class Monitoring(_Part):
    """What is installed for the people who watch."""

    pod_monitor: bool = False
    dashboards: bool = True
    rules: bool = True


class Spec(_Part):
    """What is wanted; everything has a default."""

    cluster_name: Annotated[str, Field(pattern=BROKER_NAME_SHAPE)] = "DefaultCluster"
    """RocketMQ cluster name."""

    groups: Annotated[int, Field(ge=1, le=GROUPS_MAX)] = 1
    """Number of broker groups."""

    broker_names: Annotated[
        tuple[Annotated[str, Field(pattern=BROKER_NAME_SHAPE)], ...],
        Field(strict=False, max_length=GROUPS_MAX),
    ] = ()
    """Names of the groups; by default `<name>-0`, `<name>-1`, …"""

    replicas: Annotated[int, Field(ge=1, le=9)] = 1
    """Brokers in each group; one is elected, and the others stand by."""

    replication: Replication = Replication()
    controllers: Controllers = Controllers()
    storage: Storage = Storage()

    config: Mapping[str, bool | int | float | str] = {}
    """Broker settings by RocketMQ's names."""

    advertise: Literal["masterService", "podIP", "podName"] = "masterService"
    """What clients are told as a broker's address on Kubernetes."""

    update: Update = Update()
    tls: SecretRef = SecretRef()
    acl: SecretRef = SecretRef()
    monitoring: Monitoring = Monitoring()

    pod_template: Mapping[str, JsonValue] = {}
    """Resources, affinity, tolerations and annotations of the pods."""


class BrokerSet(_Part):
    """A whole manifest."""

    api_version: Literal["brokerset.io/v1alpha1"]
    kind: Literal["BrokerSet"]
    metadata: Metadata
    spec: Spec = Spec()
    status: Any = None
    """Written by the operator; not read."""

    @property
    def broker_names(self) -> tuple[str, ...]:
        """Name of each group, in order."""
        return self.spec.broker_names or tuple(f"{self.metadata.name}-{n}" for n in range(self.spec.groups))

    @property
    def min_in_sync_replicas(self) -> int:
        """Fewest in-sync brokers that take a send."""
        chosen = self.spec.replication.min_in_sync_replicas
        return chosen if chosen is not None else (2 if self.spec.replicas >= 3 else 1)

    def config_values(self) -> dict[str, SettingValue]:
        """The settings of `spec.config`, by Python name, ready for `BrokerSettings`."""
        known = setting_fields(BrokerSettings)
        return {known[k].name: known[k].parse(value_text_of(v)) for k, v in self.spec.config.items()}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a manifest."""

    path: str
    """Where, as `spec.replication.mode`; empty for the manifest as a whole."""

    reason: str
    advice: str
    """What to do about it."""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.reason}; {self.advice}"


class ManifestError(ValueError):
    """A manifest cannot be used; has all problems, not just the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def default_manifest(name: str = "brokerset") -> BrokerSet:
    """Return the set that is run when nobody writes a manifest: three controllers, one group, one broker."""
    return read_manifest({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}})


def read_manifest_text(text: str) -> BrokerSet:
    """Read a manifest from YAML or JSON; raises `ManifestError`."""
    try:
        document = read_yaml(text)
    except YamlProblem as error:
        problem = Problem("", f"the text cannot be read as YAML: {error}", "correct the text")
        raise ManifestError([problem]) from None
    return read_manifest(document)


def read_manifest(document: object) -> BrokerSet:
    """Check a manifest that was read from YAML, JSON or the Kubernetes API; raises `ManifestError`.

    A field that is null counts as left out, as it does for the Kubernetes API.
    """
    if not isinstance(document, dict):
        example = f"write apiVersion: {API_VERSION}, kind: {KIND}, metadata: {{name: …}}"
        raise ManifestError([Problem("", "is not a BrokerSet manifest", example)])
    given: dict[str, Any] = _without_nulls(document)
    try:
        manifest = BrokerSet.model_validate(given)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=True)
        found = _shape_problems(details)
        partial = _without_faults(given, [detail["loc"] for detail in details])
        found += [p for p in check_manifest(partial) if not _covered(p.path, found)] if partial else []
        raise ManifestError(found) from None
    if problems := check_manifest(manifest):
        raise ManifestError(problems)
    return manifest


def check_manifest(manifest: BrokerSet) -> list[Problem]:
    """Return what is wrong with a well-shaped manifest: contradictions, settings, what is not served."""
    return [*_contradictions(manifest), *_config_problems(manifest), *_not_served(manifest)]


def value_text_of(value: bool | int | float | str) -> str:
    """Return a value of `spec.config` as settings files spell it."""
    return value_text(str(value) if isinstance(value, float) else value)


def _contradictions(manifest: BrokerSet) -> Iterable[Problem]:
    spec = manifest.spec
    names = spec.broker_names
    if names and "groups" in spec.model_fields_set and len(names) != spec.groups:
        reason = f"lists {len(names)} names for {spec.groups} groups"
        yield Problem("spec.brokerNames", reason, "list one name for each group, or leave groups out")
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("spec.brokerNames", f"{name} is listed twice", "give each group a name of its own")
    minimum = spec.replication.min_in_sync_replicas
    if minimum is not None and minimum > spec.replicas:
        reason = f"{minimum} can never be in sync with replicas: {spec.replicas}"
        allowed = f"1 to {spec.replicas}" if spec.replicas > 1 else "1"
        yield Problem("spec.replication.minInSyncReplicas", reason, f"use {allowed}, or leave it out")


def _config_problems(manifest: BrokerSet) -> list[Problem]:
    known = setting_fields(BrokerSettings)
    found: list[Problem] = []
    values: dict[str, Any] = {}
    for name, raw in manifest.spec.config.items():
        path = f"spec.config.{name}"
        item = known.get(name)
        if item is None:
            reason, _, near = unknown_name(BrokerSettings, name).removeprefix(f"{name} ").partition("; ")
            found.append(Problem(path, reason, near or "correct the name or leave it out"))
        elif name in OWN_SETTINGS:
            found.append(Problem(path, "is set by brokerset itself", OWN_SETTINGS[name]))
        else:
            try:
                value = item.parse(value_text_of(raw))
                if text := item.problem(value):
                    raise ValueError(text.partition(": ")[2])
                values[item.name] = value
            except ValueError as error:
                found.append(Problem(path, f"{value_text_of(raw)!r}: {error}", "correct the value"))
    for text in BrokerSettings(**values).problems():
        name = re.split("[=: ]", text, maxsplit=1)[0]
        found.append(Problem(f"spec.config.{name}", text[len(name) :].lstrip("=: "), "correct the value"))
    return found


def _not_served(manifest: BrokerSet) -> Iterable[Problem]:
    """Name the fields that ask for something that does not exist yet, so that nobody relies on it."""
    spec = manifest.spec
    minimum = spec.replication.min_in_sync_replicas
    asked = (
        (
            spec.controllers.ref is not None,
            "controllers.ref",
            "controllers of another set are not served yet",
            "leave it out: this set then runs its own",
        ),
        (
            spec.replication.mode == "dledger",
            "replication.mode",
            "dledger is not served yet",
            "use controller or leave it out",
        ),
        (
            minimum is not None and 1 < minimum <= spec.replicas,
            "replication.minInSyncReplicas",
            f"is {minimum}, but copying messages to other brokers is not served yet",
            "use 1 or leave it out",
        ),
        (
            spec.tls.secret_name is not None,
            "tls.secretName",
            "encrypted connections are not served yet",
            "leave it out, and let nobody else reach the ports",
        ),
        (
            spec.acl.secret_name is not None,
            "acl.secretName",
            "access control is not served yet",
            "leave it out, and let nobody else reach the ports",
        ),
    )
    return [Problem(f"spec.{path}", reason, advice) for when, path, reason, advice in asked if when]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _shape_problems(details: list[ErrorDetails]) -> list[Problem]:
    found: dict[str, Problem] = {}
    for detail in details:
        path = _path(detail["loc"])
        # A union reports one error for each member; the first says enough.
        found.setdefault(path, Problem(path, *_reason_and_advice(detail)))
    return list(found.values())


def _path(location: tuple[int | str, ...]) -> str:
    parts = [str(part) for part in location]
    if parts[:2] == ["spec", "config"]:
        parts = parts[:3]  # the rest names members of the union of allowed types
    return ".".join(parts)


def _reason_and_advice(detail: ErrorDetails) -> tuple[str, str]:
    context = detail.get("ctx") or {}
    kind = detail["type"]
    last = str(detail["loc"][-1]) if detail["loc"] else ""
    match kind:
        case "missing":
            examples = {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": "{name: orders}",
                "name": "orders",
            }
            return "is missing", f"add {last}: {examples.get(last, '…')}"
        case "extra_forbidden":
            return "is not a field", _field_advice(detail["loc"])
        case "literal_error":
            expected = str(context.get("expected", "allowed"))
            return f"is not {expected}", "use one of these" if " or " in expected else "write exactly that"
        case "string_pattern_mismatch" if context.get("pattern") == NAME_SHAPE:
            return (
                "is not a name",
                "use lower-case letters, digits and -, starting and ending with a letter or digit",
            )
        case "string_pattern_mismatch" if context.get("pattern") == BROKER_NAME_SHAPE:
            return "is not a name", "use 1 to 127 letters, digits, _, -, % or |"
        case "string_pattern_mismatch":
            return "is not a size", "write a whole number with a unit, like 20Gi"
        case "string_too_long":
            return f"is longer than {context.get('max_length')} characters", "choose a shorter one"
        case "greater_than_equal":
            return f"is less than {context.get('ge')}", f"use {context.get('ge')} or more"
        case "less_than_equal":
            return f"is more than {context.get('le')}", f"use {context.get('le')} or less"
        case "too_long":
            return f"has more than {context.get('max_length')} items", "use fewer"
        case _:
            wanted = {
                "int_type": "a whole number",
                "bool_type": "true or false",
                "string_type": "a text",
                "model_type": "an object with fields",
                "dict_type": "an object with fields",
                "mapping_type": "an object with fields",
                "tuple_type": "a list",
            }.get(kind)
            if str(detail["loc"][:2]) == str(("spec", "config")) and len(detail["loc"]) > 2:
                wanted = "a text, a number, or true or false"
            return (f"is not {wanted}", f"give {wanted}") if wanted else (detail["msg"], "correct it")


def _field_advice(location: tuple[int | str, ...]) -> str:
    from difflib import get_close_matches

    model: Any = BrokerSet
    for part in location[:-1]:
        by_alias = {field.alias or name: field for name, field in model.model_fields.items()}
        annotation = by_alias[str(part)].annotation
        members = (annotation, *getattr(annotation, "__args__", ()))
        model = next(
            (item for item in members if isinstance(item, type) and issubclass(item, BaseModel)), None
        )
        if model is None:
            return "leave it out"
    known = {(field.alias or name).lower(): field.alias or name for name, field in model.model_fields.items()}
    near = get_close_matches(str(location[-1]).replace("_", "").lower(), known, n=1, cutoff=0.7)
    return (
        f"did you mean {known[near[0]]}?" if near else f"leave it out; there are {', '.join(known.values())}"
    )


def _without_faults(document: dict[str, Any], locations: list[tuple[int | str, ...]]) -> BrokerSet | None:
    """Return the manifest with all ill-shaped fields left out, so that the rest can be checked as well."""
    rest = copy.deepcopy(document)
    for location in locations:
        steps = location[:3] if location[:2] == ("spec", "config") else location
        holder: Any = rest
        for step in steps[:-1]:
            inside = holder.get(step) if isinstance(holder, dict) else None
            if not isinstance(inside, dict):
                break
            holder = inside
        else:
            step = steps[-1]
        if isinstance(holder, dict):
            holder.pop(step, None)
    rest.update(apiVersion=API_VERSION, kind=KIND, metadata={"name": "unnamed"})
    try:
        return BrokerSet.model_validate(rest)
    except ValidationError:
        return None


def _covered(path: str, problems: list[Problem]) -> bool:
    """Whether something is already said about `path`, something in it, or something it is in."""
    return any(
        (path + ".").startswith(p.path + ".") or (p.path + ".").startswith(path + ".") for p in problems
    )


assert NAME_PATTERN.pattern in BROKER_NAME_SHAPE, "two places say what a broker name looks like"
