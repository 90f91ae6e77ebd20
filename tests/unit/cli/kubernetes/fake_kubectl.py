"""A kubectl for tests: answers from files in a folder, keeps annotations, and records every call.

Run as a program; the variable `FAKE_KUBECTL` names the folder:

* `set.json`: the BrokerSet; without it there is none.
* `<kind>.json`: a list of objects of that kind, as `pods.json`; without it there are none.
* `logs/<pod>.log`, `logs/<pod>.previous.log`.
* `fails/<verb>`, `fails/<verb> <kind>`: standard error of such a call, which then fails.
* `fails/list`: standard error of a look at all BrokerSets, which then fails.
* `conflicts`: how many `annotate` calls find that somebody was faster; that somebody adds `conflict.json`.
* `operator.json`: a list of `[annotations, changes]`: when the set has these annotations (null: has none),
  the changes are merged into its status, each pair once and in order, one at each look.
* `calls`: what was called, a JSON list in each line.
"""

from __future__ import annotations

import json
import os
import sys

# Importing `typing` would take as long as all the rest; type checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

FOLDER = os.environ["FAKE_KUBECTL"]


def path(name: str) -> str:
    return os.path.join(FOLDER, name)


def load(name: str, default: Any = None) -> Any:
    try:
        with open(path(name), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return default


def save(name: str, value: object) -> None:
    with open(path(name), "w", encoding="utf-8") as file:
        json.dump(value, file)


def text_of(name: str) -> str | None:
    try:
        with open(path(name), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def end(message: str) -> NoReturn:
    sys.stderr.write(message)
    sys.exit(1)


def merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def operator_round(item: dict[str, Any]) -> None:
    steps = load("operator.json", [])
    if not steps:
        return
    wanted, changes = steps[0]
    have = item["metadata"].get("annotations", {})
    if all(have.get(key) == value for key, value in wanted.items()):
        merge(item.setdefault("status", {}), changes)
        changed(item)
        save("operator.json", steps[1:])


def changed(item: dict[str, Any]) -> None:
    meta = item["metadata"]
    meta["resourceVersion"] = str(int(meta.get("resourceVersion", "1")) + 1)
    save("set.json", item)


def annotate(words: list[str], options: dict[str, str]) -> None:
    item = load("set.json")
    left = load("conflicts", 0)
    if left:
        save("conflicts", left - 1)
        merge(item["metadata"].setdefault("annotations", {}), load("conflict.json", {}))
        changed(item)
    if options["--resource-version"] != item["metadata"]["resourceVersion"]:
        end(
            "Error from server (Conflict): Operation cannot be fulfilled on brokersets.brokerset.io: "
            "the object has been modified; please apply your changes to the latest version and try again\n"
        )
    annotations = item["metadata"].setdefault("annotations", {})
    for word in words[3:]:
        key, equals, value = word.partition("=")
        if equals:
            annotations[key] = value
        else:
            annotations.pop(key.removesuffix("-"), None)
    changed(item)


def get(words: list[str], options: dict[str, str]) -> dict[str, Any]:
    kind = words[1]
    if kind != "brokersets.brokerset.io":
        found = load(kind.partition(".")[0] + ".json", [])
        label = options.get("-l", "")
        wanted = dict(each.split("=") for each in label.split(",") if "=" in each)
        found = [
            each for each in found if wanted.items() <= each.get("metadata", {}).get("labels", wanted).items()
        ]
        return {"kind": "List", "items": found}
    item: dict[str, Any] | None = load("set.json")
    if item is not None:
        operator_round(item)
    if len(words) == 2:
        problem = text_of(os.path.join("fails", "list"))
        if problem is not None:
            end(problem)
        return {"kind": "List", "items": [item] if item is not None else []}
    if item is None or item["metadata"]["name"] != words[2]:
        end(f'Error from server (NotFound): brokersets.brokerset.io "{words[2]}" not found\n')
    return item


def main() -> None:
    words: list[str] = []
    options: dict[str, str] = {}
    rest = list(sys.argv[1:])
    while rest:
        word = rest.pop(0)
        if word in ("-o", "-l", "-c"):
            options[word] = rest.pop(0)
        elif word.startswith("-"):
            key, _, value = word.partition("=")
            options[key] = value
        else:
            words.append(word)
    with open(path("calls"), "a", encoding="utf-8") as calls:
        calls.write(json.dumps(sys.argv[1:]) + "\n")
    for name in (words[0], " ".join(words[:2])):
        problem = text_of(os.path.join("fails", name))
        if problem is not None:
            end(problem)
    if words[0] == "get":
        print(json.dumps(get(words, options)))
    elif words[0] == "annotate":
        annotate(words, options)
    elif words[0] == "logs":
        log = text_of(f"logs/{words[1]}{'.previous' if '--previous' in options else ''}.log")
        if log is None:
            end(f'Error from server (NotFound): pods "{words[1]}" not found\n')
        sys.stdout.write(log)
        sys.stdout.flush()
    elif words[0] == "version":
        print(json.dumps({"clientVersion": {"gitVersion": "v1.35.0"}}))
    elif words[0] == "config":
        print("shop")


if __name__ == "__main__":
    main()
