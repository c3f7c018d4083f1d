"""An S3 server on loopback, and a bucket of each test's own."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from raysim.storage.remote.mirror import Mirror
from tests.support.mirrors import Machine

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of moto's server."""
    if not (find_spec("moto") and find_spec("flask_cors")):
        pytest.skip("moto's server, which stands for S3, is not installed: pip install 'moto[s3]' flask flask-cors")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    log = tmp_path_factory.mktemp("s3") / "log"
    # It logs every request: a pipe that nobody reads would fill up, and stop it.
    with log.open("w") as file, subprocess.Popen(command, stderr=file, stdout=subprocess.DEVNULL) as server:
        try:
            while not (found := re.search(r"Running on (http\S+)", log.read_text())):
                assert server.poll() is None, log.read_text()
                time.sleep(0.05)
            yield found[1]
        finally:
            server.kill()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty bucket that the environment leads to."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    name = f"bucket-{next(_NUMBERS)}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{name}", method="PUT")).close()
    return f"s3://{name}"


@pytest.fixture(params=["s3", "file"])
def shared(request: pytest.FixtureRequest) -> str:
    """A folder's URI that several machines could see, on each kind of file system."""
    if request.param == "file":
        return str(request.getfixturevalue("tmp_path").joinpath("shared").as_uri())
    return f"{request.getfixturevalue('bucket')}/shared"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: str) -> Machine:
    """The mirror of one folder on a machine of that name, whose disk holds what it held before."""

    def make(name: str) -> Mirror:
        monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / name))
        return Mirror.of(shared)

    return make
