"""Defines `raysim check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysim.cli.as_json import Json, print_json
from raysim.cli.options import File, Folder, Set, Unset, load, text_of
from raysim.cli.output import print_text, say
from raysim.config.counted import counted

if TYPE_CHECKING:
    from raysim.engine.plan.plan import Plan


def check(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    path: Folder = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure which trainer and chunk size are fastest here.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --calibrate: write FILE with the fastest values here. [default: print]"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check an experiment, prepare its data, and say what would run."""
    if out is not None and not calibrate:
        raise typer.BadParameter("--out writes the result of --calibrate: add --calibrate.")
    from raysim.config.section import replaced
    from raysim.engine.plan.resolve import resolve
    from raysim.report import preview
    from raysim.storage.remote.uri import check_is_path

    if out is not None:
        check_is_path(out, "The file of --out")
    experiment = load(file, changes, removals)
    plan = resolve(experiment)
    if as_json:
        if calibrate:
            raise typer.BadParameter("--calibrate prints keys of a file, and no JSON: leave out one of them.")
        where = path or experiment.default_folder
        facts = {"folder": where, "fingerprint": plan.fingerprint, "trainer": plan.choice.trainer}
        print_json({**facts, "experiment": replaced(experiment, tuning=None)})
        return
    print_text(preview.text(plan, path or experiment.default_folder))
    if experiment.tuning is not None:
        import tuning

        print_text("\n" + preview.aligned(tuning.preview(experiment, tuning.default_folder(experiment))))
    if calibrate:
        _calibrate(plan, file, out)


def _calibrate(plan: Plan, file: Path, out: Path | None) -> None:
    import json

    from raysim.config.overrides import rewritten
    from raysim.engine import cores
    from raysim.engine.rounds.calibrate import best, calibrate
    from raysim.errors import RunFolderError
    from raysim.report import preview
    from raysim.run_folder import files
    from raysim.storage import atomic
    from raysim.storage.named_file import check_takes_a_file

    if out is not None:
        files.check_is_no_record(out)
        check_takes_a_file(out, RunFolderError)
    asked = plan.experiment.engine.workers
    workers = cores.own() if asked == "auto" else max(1, asked)
    timings = calibrate(plan, workers, tell=lambda reason: say(f"left out: {reason}"))
    chosen = best(timings)
    print_text(
        f"\nmeasured in this process, a round of {counted(workers, 'worker')}:\n{preview.calibrated(timings, chosen)}\n"
    )
    if out is None:
        print_text(f"[engine]\ntrainer = {json.dumps(chosen.trainer)}\nchunk_size = {json.dumps(chosen.chunk_size)}")
    else:
        values = {"engine.trainer": chosen.trainer, "engine.chunk_size": chosen.chunk_size}
        atomic.write_text(out, rewritten(text_of(file), values))
        print_text(f"written to {out}, without the changes of --set and --unset")
