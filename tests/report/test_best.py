"""`raysim best`: the best and the second best method by any recorded score, as Wang et al. (2021) choose them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from raysim.api import reports
from raysim.cli.output import MISUSED
from raysim.errors import RunFolderError
from raysim.report import picture_files
from raysim.report.best import choose, methods
from raysim.storage import atomic, lock
from tests.support.command import Raysim
from tests.support.run_folders import write

CURVES = {
    # rate: training accuracy, validation accuracy and loss, and test accuracy after rounds 1 and 2.
    0.1: ((0.3, 0.9), (0.5, 0.6), (0.9, 0.7), (0.4, 0.5)),
    0.2: ((0.2, 0.8), (0.4, 0.7), (0.7, 0.8), (0.3, 0.6)),
    0.4: ((0.1, 0.7), (0.3, 0.5), (0.8, 0.9), (0.2, 0.7)),
}
NAMES = ("accuracy", "eval/validation/accuracy", "eval/validation/loss", "eval/test/accuracy")


def rows(rate: float, seed: int = 0) -> list[dict[str, Any]]:
    """Two rounds; the second of two seeds is 0.02 better in everything."""
    return [{name: curve[at] + 0.02 * seed for name, curve in zip(NAMES, CURVES[rate], strict=True)} for at in (0, 1)]


def lr(rate: float) -> dict[str, Any]:
    return {"optimizer": {"name": "sgd", "lr": rate}}


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three rates of two seeds; a fourth rate that diverged in the first round."""
    for rate in CURVES:
        for seed in range(2):
            write(tmp_path / "swept" / f"lr={rate}" / f"trial-{seed}", rows(rate, seed), client=lr(rate), seed=seed)
    write(tmp_path / "swept" / "lr=9", [dict.fromkeys(NAMES, 0.99)], client=lr(9.0))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "swept"


def test_the_record_of_pictures_is_read_and_written_by_one_process_at_a_time(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else, of two at once, one would write a record without the other's names."""
    seen, out = [], tmp_path / "pictures"

    def is_locked(step: str) -> None:
        with lock.if_left(out) as is_left:
            seen.append((step, not is_left))

    def noting_read(folder: Path) -> list[Path]:
        is_locked("read")
        return read(folder)

    def noting_write(file: Path, text: str) -> None:
        is_locked("write")
        write_text(file, text)

    read, write_text = picture_files._own, atomic.write_text
    monkeypatch.setattr(picture_files, "_own", noting_read)
    monkeypatch.setattr(atomic, "write_text", noting_write)
    reports.best("swept", by="eval/validation/accuracy", out=out)
    # The first look is for files in the way.
    assert seen == [("read", False), ("read", True), ("write", True)]


@pytest.mark.parametrize(
    ("by", "after", "rates", "scores"),
    [
        ("accuracy", None, (0.1, 0.2), (0.91, 0.81)),
        ("eval/validation/accuracy", None, (0.2, 0.1), (0.71, 0.61)),
        ("eval/validation/loss", None, (0.1, 0.2), (0.71, 0.81)),
        ("eval/test/accuracy", None, (0.4, 0.2), (0.71, 0.61)),
        # The diverged rate has one round too.
        ("eval/test/accuracy", 1, (9.0, 0.1), (0.99, 0.41)),
        ("eval/validation/loss", 1, (0.2, 0.4), (0.71, 0.81)),
    ],
)
def test_each_score_has_its_own_choice(
    by: str, after: int | None, rates: tuple[float, ...], scores: tuple[float, ...], swept: Path
) -> None:
    found, _ = methods(swept)
    chosen = choose(found, by, after)
    assert chosen.second is not None
    pair = (chosen.best, chosen.second)
    assert tuple(one.group.runs[0].experiment.client.optimizer.lr for one in pair) == rates
    assert tuple(one.score for one in pair) == pytest.approx(scores)
    assert (chosen.after, chosen.left_out) == ((2, 1) if after is None else (1, 0))


@pytest.mark.parametrize(
    ("by", "after", "message"),
    [
        (
            "eval/train/accuracy",
            None,
            r"no score 'eval/train/accuracy' to choose by \(did you mean 'eval/test/accuracy'\?\): .* accuracy, eval",
        ),
        ("round", None, "swept has no score 'round' to choose by"),
        ("accuracy", 3, "swept has finished 2 rounds, so nothing is known after 3"),
    ],
)
def test_what_was_not_recorded_is_refused_by_name(by: str, after: int | None, message: str, swept: Path) -> None:
    found, _ = methods(swept)
    with pytest.raises(RunFolderError, match=message):
        choose(found, by, after)


def test_of_a_study_the_trials_are_compared(tmp_path: Path) -> None:
    study = tmp_path / "made-tuning"
    for number, rate in enumerate((0.1, 0.2)):
        write(study / "trials" / f"{number:04d}" / "seed-0", rows(rate), client=lr(rate))
    write(study / "final" / "0000" / "seed-0", [dict.fromkeys(NAMES, 1.0)] * 2, client=lr(0.4))
    (study / "study.json").write_text(json.dumps({}))
    found, _ = methods(study)
    chosen = choose(found, "accuracy")
    assert (chosen.folder, chosen.best.score, len(found.groups)) == ("made-tuning", 0.9, 2)


@pytest.mark.usefixtures("swept")
def test_the_command_says_and_draws_each_choice(tmp_path: Path) -> None:
    write(tmp_path / "single", rows(0.1), client=lr(0.1))
    called = Raysim(tmp_path)
    code = called(
        *("best", "swept", "single", "--by", "eval/validation/accuracy", "--by", "accuracy", "--after", "1"),
        *("--after", "2", "--out", "chosen"),
    )
    assert code == 0
    assert called.out.splitlines()[:4] == [
        "swept, by validation accuracy after 1 round",
        "  best         99.0 %  client.optimizer.lr = 9  (test accuracy 99.0 %)",
        "  second best  51.0 %  client.optimizer.lr = 0.1  (test accuracy 41.0 %)",
        "single, by validation accuracy after 1 round",
    ]
    assert "swept: 1 method without 'accuracy' after 2 rounds not considered." in called.err
    assert "single has one method only with 'accuracy': there is no second best." in called.err
    names = [f"best-by-{by}-after-{n}" for by in ("accuracy", "eval-validation-accuracy") for n in (1, 2)]
    kinds = ("csv", "pdf", "png", "svg")
    assert sorted(file.name for file in Path("chosen").glob("[!.]*")) == sorted(
        f"{n}.{k}" for n in names for k in kinds
    )
    with Path("chosen/best-by-accuracy-after-2.csv").open() as file:
        points = list(csv.DictReader(file))
    assert [(p["group"], p["place"], p["round"], round(float(p["mean"]), 6)) for p in points] == [
        ("swept", "best", "1", 0.41),
        ("swept", "best", "2", 0.51),
        ("swept", "second best", "1", 0.31),
        ("swept", "second best", "2", 0.61),
        ("single", "best", "1", 0.4),
        ("single", "best", "2", 0.5),
    ]
    assert "test accuracy" in Path("chosen/best-by-accuracy-after-2.svg").read_text()


def test_its_own_pictures_are_replaced_and_no_other_file(swept: Path, tmp_path: Path) -> None:
    out = tmp_path / "chosen"
    out.mkdir()
    mine = out / "best-by-accuracy-after-2.svg"
    mine.write_bytes(b"mine")
    wrong = r"after-2\.svg is none of the pictures that \.pictures\.json names, so it is not replaced: move it away"
    with pytest.raises(RunFolderError, match=wrong):
        reports.best(swept, by="accuracy", out=out)
    assert [mine.read_bytes(), *out.iterdir()] == [b"mine", mine]
    mine.unlink()
    for width in (8, 9):
        made = reports.best(swept, by="accuracy", out=out, set=[f"report.width_cm={width}"])
        assert made.pictures == (mine.with_suffix(""),)
    # Another score's picture does not forget them.
    reports.best(swept, by="eval/test/accuracy", out=out)
    reports.best(swept, by="accuracy", out=out)


@pytest.mark.parametrize("kept", [b"", b"{}", b"[1]", b'["../best-by-accuracy-after-2.csv"]'])
def test_a_damaged_list_of_pictures_names_none(kept: bytes, swept: Path, tmp_path: Path) -> None:
    out = tmp_path / "chosen"
    reports.best(swept, by="accuracy", out=out)
    (out / picture_files.OWN).write_bytes(kept)
    with pytest.raises(RunFolderError, match="is none of the pictures"):
        reports.best(swept, by="accuracy", out=out)


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--by", "eval/test/p5"], "swept has no score 'eval/test/p5'"),
        (["--by", "accuracy", "--shown", "wall"], "'wall' cannot be shown: no run of swept has it."),
    ],
)
def test_the_command_refuses_what_is_not_there(options: list[str], message: str, tmp_path: Path) -> None:
    called = Raysim(tmp_path)
    assert called("best", "swept", *options) == MISUSED
    assert message in called.err
