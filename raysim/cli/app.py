"""Defines the `raysim` command. A command imports its modules when it is called, so `raysim --help` answers at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from raysim.cli import (
    begin,
    check,
    data,
    kept_model,
    keys,
    meant_option,
    on_cluster,
    parts,
    recorded_runs,
    run,
    standard_streams,
    tune,
)
from raysim.cli.output import FAILED, MISUSED, say
from raysim.config.printable import of_record
from raysim.errors import (
    DataError,
    ExperimentError,
    ModelError,
    RaysimError,
    ResourceError,
    RunFolderError,
    UnknownRunError,
)

_MISUSES = (ExperimentError, DataError, ModelError, ResourceError, RunFolderError, UnknownRunError)

_GIVEN = "raysim.given"
"""Key of a context's arguments."""


class _Commands(TyperGroup):
    """Turns raysim's errors into one message and an exit code, for all commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # As they are written: a Path of file://host/x is that of file:///host/x.
        ctx.meta[_GIVEN] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        from raysim.engine.rounds.terminable import terminable
        from raysim.storage.remote.uri import check_without_host

        logger = logging.getLogger("raysim")
        logger.addFilter(of_record)
        try:
            _check_not_empty(ctx.meta[_GIVEN])
            for given in ctx.meta[_GIVEN]:
                check_without_host(given)
            with terminable():
                return super().invoke(ctx)
        except meant_option.UsageError as error:
            meant_option.explain(error)
            raise
        except RaysimError as error:
            say(f"error: {error}")
            raise typer.Exit(MISUSED if isinstance(error, _MISUSES) else FAILED) from None
        except BrokenPipeError:
            # The reader of our output left (`raysim check ... | head`): typer ends quietly.
            raise
        except OSError as error:
            say(f"error: {error}")
            raise typer.Exit(FAILED) from None
        finally:
            logger.removeFilter(of_record)


def _check_not_empty(arguments: Sequence[str]) -> None:
    """Refuse empty arguments, also those of options: a Path of "" is the working folder, which nobody has named."""
    for before, given in pairwise(("", *arguments)):
        if given == "":
            option = before if before.startswith("--") else "An argument"
        elif given.startswith("--") and given.find("=") == len(given) - 1:
            option = given[:-1]
        else:
            continue
        # A client's name may be empty.
        if option != "--client":
            raise typer.BadParameter(
                f"{option} is an empty text, which names nothing: is a variable of the shell unset?"
            )


def main() -> None:
    """The `raysim` command."""
    standard_streams.open_missing()
    app(prog_name="raysim")


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        typer.echo(f"raysim {metadata.version('raysim')}")
        raise typer.Exit


app = typer.Typer(
    cls=_Commands,
    help="Simulate cross-device federated learning.",
    epilog=(
        "Exit codes: 0: done, also where [stop] ended a run; 1: an error during the work; 2: a request that cannot be "
        "carried out, before anything is written; 130: Ctrl-C or SIGTERM. With --json the result is one JSON document "
        "on standard output, and messages go to standard error."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("init")(begin.init)
app.command("configs")(begin.configs)
app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("attach")(on_cluster.attach)
app.command("stop")(on_cluster.stop)
app.command("replay")(recorded_runs.replay)
app.command("check")(check.check)
app.command("parts")(parts.parts)
app.command("keys")(keys.keys)
app.command("tune")(tune.tune)
app.command("table")(tune.table)
app.command("tuners")(tune.tuners)
app.command("proxy")(tune.proxy)
app.command("evolve")(tune.evolve)
app.command("report")(recorded_runs.report)
app.command("compare")(recorded_runs.compare)
app.command("best")(recorded_runs.best)
app.command("export")(kept_model.export)
app.command("evaluate")(kept_model.evaluate)
app.command("interpolate")(recorded_runs.interpolate)
app.add_typer(data.data, name="data")
