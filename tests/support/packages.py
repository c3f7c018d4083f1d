"""The example package, installed into a folder, and packages that are wrong in some way."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysim.config import part

EXAMPLE = Path(__file__).parent.parent / "example_package"
REPOSITORY = Path(__file__).parent.parent.parent


def install_example(folder: Path) -> Path:
    """Install the example package into a new folder, from what is here; returns the folder."""
    # Building writes beside the sources.
    copy = shutil.copytree(EXAMPLE, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(folder / "site"), str(copy)]
    subprocess.run(command, check=True, timeout=240)
    return folder / "site"


def write_package(folder: Path, name: str, code: str, entries: str = "one = {name}:PART") -> None:
    """Put a package of one module, as it lies there once it is installed, into a folder."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{name}.py").write_text(code)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[raysim.parts]\n{entries.format(name=name)}\n")


@contextmanager
def installed_here(*sites: Path) -> Iterator[None]:
    """This process finds the packages of these folders."""
    before, modules = list(sys.path), set(sys.modules)
    sys.path[:0] = map(str, sites)
    importlib.invalidate_caches()
    part.load_installed.cache_clear()
    try:
        yield
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and any(Path(file).is_relative_to(site) for site in sites):
                del sys.modules[name]
        part.load_installed.cache_clear()


def with_packages(*arguments: str, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Call Python in a process that finds the packages of a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(REPOSITORY)])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment, cwd=cwd)
