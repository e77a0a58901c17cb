"""A PostgreSQL server of the tests' own, in a folder of its own, on a socket there; a database for each store."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import pytest

_INSTALLED = [Path(shutil.which("initdb") or "").resolve(), *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
PROGRAMS = next((path.parent for path in _INSTALLED if path.is_file()), None)
NEEDS = pytest.mark.skipif(
    PROGRAMS is None or any(find_spec(name) is None for name in ("sqlalchemy", "psycopg", "alembic")),
    reason="postgresql: no server or no client (apt-get install postgresql; the extra fleet)",
)
USER = "postgres"  # the server refuses to run as root
FAST = "-c fsync=off -c full_page_writes=off -c listen_addresses="


class Databases:
    """Databases of one server. ``stop`` and ``begin`` end it at once, and start it again on the same files.

    ``options``: words for the server, with which the next ``begin`` starts it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self.options = ""

    @property
    def data(self) -> Path:
        """Folder of the server's files."""
        return self._folder / "data"

    def url(self, name: str, user: str = USER) -> str:
        return f"postgresql://{user}@/{name}?host={quote(str(self._folder))}"

    def fresh(self) -> str:
        """URL of a new, empty database."""
        name = f"d{next(self._numbers)}"
        self.run("psql", "-h", str(self._folder), "-U", USER, "-qc", f"CREATE DATABASE {name}", "postgres")
        return self.url(name)

    def sql(self, url: str, statement: str) -> str:
        """What ``psql`` prints."""
        return self.run("psql", "-Atqc", statement, url)

    def begin(self) -> None:
        options = f"-k {self._folder} {FAST} {self.options}"
        self.run("pg_ctl", "-D", str(self.data), "-w", "-l", str(self._folder / "log"), "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        self.run("pg_ctl", "-D", str(self.data), "-w", "-m", mode, "stop")

    def run(self, program: str, *words: str) -> str:
        assert PROGRAMS is not None
        command = [str(PROGRAMS / program), *words]
        if os.geteuid() == 0:
            command = ["runuser", "-u", USER, "--", *command]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout


@contextlib.contextmanager
def databases() -> Iterator[Databases]:
    """A server, ended at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: a socket's path has 107 letters at most
    if os.geteuid() == 0:
        shutil.chown(folder, USER, USER)
    server = Databases(folder)
    try:
        server.run("initdb", "-D", str(server.data), "-U", USER, "--auth=trust", "-N", "-E", "UTF8")
        server.begin()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
