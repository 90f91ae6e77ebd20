"""A PostgreSQL server on loopback for tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from brokerset_rig.stack import free_port
from brokerset_rig.waiting import until

USER: Final = "postgres"
START_SECONDS: Final = 60.0


def _programs() -> Path | None:
    """Where initdb is: Debian has it outside of the PATH."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    return next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


@contextmanager
def postgresql() -> Iterator[str]:
    """The address of a server that runs as long as the context; it does not run as root. Skips without one."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    user = USER if os.geteuid() == 0 else None
    folder, port = Path(tempfile.mkdtemp(prefix="brokerset-postgresql-")), free_port()
    if user is not None:
        shutil.chown(folder, user)
    data = folder / "data"
    initdb: list[str | Path] = [programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8"]
    command = [*initdb, "--no-sync"]
    subprocess.run(command, user=user, cwd=folder, check=True, capture_output=True, timeout=START_SECONDS)
    settings = ("-k", "", "-h", "127.0.0.1", "-p", str(port), "-c", "fsync=off")
    with (
        (folder.with_suffix(".log")).open("wb") as log,
        subprocess.Popen(
            [programs / "postgres", "-D", data, *settings], user=user, cwd=folder, stdout=log, stderr=log
        ) as server,
    ):
        try:
            address = f"postgresql+psycopg://{USER}@127.0.0.1:{port}/postgres"
            asyncio.run(_answers(address))
            yield address
        finally:
            server.send_signal(signal.SIGINT)  # connections do not keep it
            server.wait(START_SECONDS)
    shutil.rmtree(folder)
    folder.with_suffix(".log").unlink()


async def _answers(address: str) -> None:
    engine = create_engine(address)

    def is_there() -> bool:
        try:
            engine.connect().close()
        except OperationalError:
            return False
        return True

    await until(is_there, START_SECONDS, pause=0.1)
    engine.dispose()
