"""Defines `raysim init` and `raysim configs`: files to begin with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from raysim.cli.as_json import Json, print_json
from raysim.cli.output import print_text

EXPERIMENT = """# FedAvg on the 8 x 8 digits that come with scikit-learn.
# `raysim keys` lists all keys, `raysim parts` all methods.
name = "{name}"
rounds = 60

[data]
name = "digits"
clients = 100
partition = {{ name = "dirichlet", alpha = 1.0 }}

[model]
name = "mlp"
hidden = [64]

[client]
optimizer = {{ name = "sgd", lr = 0.2 }}
batch_size = 5
epochs = 5

[cohort]
size = 20

[server]
optimizer = {{ name = "sgd", lr = 1.0 }}

[evaluation]
every = 5
"""

SCRIPT = '''"""Runs {name}.toml with a module of one's own: python {name}.py"""

import torch

import raysim


def make_module():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


if __name__ == "__main__":
    # model= replaces the table [model] of the file.
    experiment = raysim.load("{name}.toml", ["name={name}-own"], ["model"])
    # A second call starts afresh in the same folder; resume=True would go on with it.
    result = raysim.run(experiment, model=make_module, overwrite=True)
    print(result.path, result.rounds["eval/test/accuracy"].drop_null()[-1])
'''

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


def init(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Of the two files, and of the run.")] = "first",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of these names.")] = False,
    as_json: Json = False,
) -> None:
    """Write an experiment and a script to begin with: NAME.toml and NAME.py."""
    from raysim.errors import ExperimentError

    if not _NAME.fullmatch(name):
        raise ExperimentError(f"NAME must be letters, digits, _ and -, and begin with a letter, but got {name!r}.")
    texts = {Path(f"{name}.toml"): EXPERIMENT.format(name=name), Path(f"{name}.py"): SCRIPT.format(name=name)}
    _write(texts, overwrite)
    if as_json:
        print_json({"written": list(texts)})
        return
    _say_written(texts)
    print_text(f"run it: raysim run {name}.toml, or python {name}.py")


def configs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The file to copy here, such as fedavg/mnist_2nn.",
            autocompletion=lambda incomplete: [one for one, _ in _configs() if one.startswith(incomplete)],
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file of this name.")] = False,
    as_json: Json = False,
) -> None:
    """List the experiments of the papers, or copy one of them into this folder."""
    from raysim.config.messages import near
    from raysim.errors import ExperimentError

    found = dict(_configs())
    if not found:
        raise ExperimentError("the papers' experiments are not installed here: take them from raysim's repository.")
    if name is None and as_json:
        print_json([{"name": one, "about": _about(file), "file": file} for one, file in found.items()])
        return
    if name is None:
        width = max(map(len, found))
        for one, file in found.items():
            print_text(f"{one:{width}}  {_about(file)}")
        return
    path = found.get(name.removesuffix(".toml"))
    if path is None and (within := [one for one in found if one.startswith(f"{name.rstrip('/')}/")]):
        raise ExperimentError(f"{name!r} is a folder of experiments: {', '.join(within)}.")
    if path is None:
        word = name.removesuffix(".toml")
        hint = ""
        if (meant := near(word, found)) is not None:
            hint = f" (did you mean {meant}?)"
        elif within := [one for one in found if word in one]:
            hint = f"; names with it are {', '.join(within)}"
        raise ExperimentError(f"there is no experiment {name!r}{hint}; `raysim configs` lists them.")
    texts = {Path(path.name): path.read_text(encoding="utf-8")}
    _write(texts, overwrite)
    if as_json:
        print_json({"written": list(texts)})
        return
    _say_written(texts)


def published(file: Path) -> str | None:
    """Return the name by which `raysim configs` copies a file of this name; None if it has none."""
    word = file.as_posix().removesuffix(".toml").removeprefix("configs/")
    names = [name for name, _ in _configs()]
    meant = [name for name in names if name == word] or [name for name in names if name.endswith(f"/{word}")]
    return meant[0] if len(meant) == 1 else None


def _configs() -> Iterator[tuple[str, Path]]:
    """Yield name and path of each experiment: of the repository, or of the installed files."""
    from importlib import metadata

    here = Path(__file__).resolve().parents[2] / "configs"
    if (here / "quickstart.toml").exists():
        paths = {file.relative_to(here).as_posix(): file for file in here.rglob("*.toml")}
    else:
        installed = metadata.files("raysim") or ()
        paths = {
            file.as_posix().partition("share/raysim/configs/")[2]: Path(str(file.locate())).resolve()
            for file in installed
            if "share/raysim/configs/" in file.as_posix() and file.suffix == ".toml"
        }
    for name in sorted(paths, key=lambda one: ("/" in one, one)):
        yield name.removesuffix(".toml"), paths[name]


def _about(path: Path) -> str:
    """Return the first sentence of a file's first comment."""
    with path.open(encoding="utf-8") as lines:
        comment = []
        for line in lines:
            if not line.startswith("#") or line.strip() == "#":
                break
            comment.append(line.strip("# \n"))
    text = " ".join(comment)
    # No sentence ends inside parentheses, or with "et al.".
    plain = re.sub(r"\([^)]*\)|et al\.", lambda found: "_" * len(found[0]), text)
    cut = re.search(r"[;.](?= )|: (?=FedAvg)", plain)
    return text if cut is None else text[: cut.start()]


def _write(texts: Mapping[Path, str], overwrite: bool) -> None:
    from raysim.errors import ExperimentError
    from raysim.storage import atomic

    # A link that leads nowhere is there too: the file would be made where it leads.
    if (there := [path for path in texts if os.path.lexists(path)]) and not overwrite:
        raise ExperimentError(f"{there[0]} is there already: choose another name, or add --overwrite.")
    for path, text in texts.items():
        atomic.write_text(path, text)


def _say_written(texts: Mapping[Path, str]) -> None:
    for path in texts:
        print_text(f"wrote {path}")
