"""A PostgreSQL server of a test, on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
USER = "postgres"
"""PostgreSQL does not run as root: where the tests do, Debian's user has to."""


@dataclass
class Postgres:
    """A server on this machine, with an empty database of its own."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{USER}"

    def start(self) -> None:
        where = ["-D", str(self.folder / "data"), "-k", str(self.folder)]
        network = ["-c", "listen_addresses=127.0.0.1", "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            command = [str(POSTGRES[-1] / "postgres"), *where, *network, "-c", "fsync=off"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **as_user())
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0 and self._answers():
                    return
            time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text())

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True


def as_user() -> dict[str, Any]:
    return {"user": USER, "group": USER, "cwd": "/"} if os.geteuid() == 0 else {}
