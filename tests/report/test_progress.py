"""What is shown, and where: bars on terminals, lines in files, nothing where nobody asked."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from raysim.report.live_bar import LiveBar
from raysim.report.log_lines import LogLines
from raysim.report.progress import Progress, Silent, Terminal
from raysim.report.standing import Standing
from tests.support.clock import Clock


class Terminalike(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines_of(clock: Clock, stream: io.StringIO, total: int, rounds: list[int], seconds_each: float) -> list[str]:
    with Terminal(LogLines(stream), total, clock) as show:
        show.started(["this process"])
        for index in rounds:
            clock.now_s += seconds_each
            show.row({"round": index, "clients": 5, "loss": 1.0, "accuracy": 0.5})
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("progress", "is_terminal", "shown"),
    [
        (None, False, False),
        (None, True, True),
        (True, False, True),
        (True, True, True),
        (False, True, False),
        (False, False, False),
    ],
)
def test_progress_is_shown_where_it_is_wanted(
    progress: bool | None, is_terminal: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", Terminalike() if is_terminal else io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    assert (Terminal.where_wanted(progress, 3) is not None) is shown


@pytest.mark.parametrize("progress", [None, True, False])
def test_a_process_without_standard_streams_shows_nothing(
    progress: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    monkeypatch.setattr("sys.stdout", None)
    assert Terminal.where_wanted(progress, 3) is None


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminalike])
def test_no_control_codes_where_the_cursor_cannot_be_moved(
    stream_type: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A log file whatever is said about colours, and a terminal that can do nothing.
    stderr = stream_type()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    show = Terminal.where_wanted(True, 1)
    assert show is not None
    with show:
        show.started(["this process"])
        show.row({"round": 0, "clients": 5, "loss": 1.0, "accuracy": 0.5, "eval/test/accuracy": 0.25})
    placement, row = stderr.getvalue().splitlines()
    assert placement == "placement  this process"
    assert row.startswith("round 1/1: loss 1, accuracy 50.0 %, test 25.0 %, ")
    assert "\x1b" not in stderr.getvalue()
    assert "\r" not in stderr.getvalue()


def test_a_log_file_gets_a_line_a_minute(clock: Clock, stream: io.StringIO) -> None:
    # 20 s a round: after the first round, a line every third one, and the last.
    written = lines_of(clock, stream, total=9, rounds=list(range(9)), seconds_each=20)
    assert [line.split(":")[0] for line in written[1:]] == ["round 1/9", "round 4/9", "round 7/9", "round 9/9"]
    assert written[2] == "round 4/9: loss 1, accuracy 50.0 %, 0.25 clients/s, 1 min 40 s left"
    assert written[-1] == "round 9/9: loss 1, accuracy 50.0 %, 0.25 clients/s"


def test_the_last_round_before_a_stop_is_written_too(clock: Clock, stream: io.StringIO) -> None:
    written = lines_of(clock, stream, total=100, rounds=[0, 1, 2], seconds_each=1)
    assert [line.split(":")[0] for line in written[1:]] == ["round 1/100", "round 3/100"]


def test_many_workers_are_counted(clock: Clock, stream: io.StringIO) -> None:
    Terminal(LogLines(stream), 3, clock).started([f"worker {n}" for n in range(64)])
    written = stream.getvalue().splitlines()
    assert written[0] == "placement  worker 0"
    assert written[1] == "           worker 1"
    assert written[-1] == "           ... and 56 more"
    assert len(written) == 9


def test_workers_that_join_later_are_listed_and_the_pace_is_measured_anew(clock: Clock, stream: io.StringIO) -> None:
    with Terminal(LogLines(stream), 9, clock) as show:
        show.started([f"worker {n}" for n in range(7)])
        clock.now_s = 60
        show.row({"round": 0, "clients": 5, "loss": 1.0})
        show.started(["worker 7", "worker 8"])
        clock.now_s = 130
        show.row({"round": 1, "clients": 70, "loss": 1.0})
    written = stream.getvalue().splitlines()
    assert written[7:] == [
        "round 1/9: loss 1, 0.083 clients/s, 8 min 00 s left",
        "placement  worker 7",
        "           ... and 1 more",
        "round 2/9: loss 1, 1 clients/s, 8 min 10 s left",
    ]


def test_time_before_the_workers_were_there_is_no_measure_of_a_round(clock: Clock, stream: io.StringIO) -> None:
    with Terminal(LogLines(stream), 3, clock) as show:
        clock.now_s = 500
        show.started(["this process"])
        clock.now_s = 501
        show.row({"round": 0, "clients": 5, "loss": 1.0})
    assert stream.getvalue().splitlines()[-1] == "round 1/3: loss 1, 5 clients/s, 2.0 s left"


def test_the_bar_fits_eighty_columns_and_says_everything(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    bar = LiveBar(console, clock)
    standing = Standing.at_start(1500, 0)
    for index in (1202, 1203):
        clock.now_s += 50
        row = {"round": index, "clients": 800, "loss": 0.53217, "accuracy": 0.871, "eval/test/accuracy": 0.853}
        standing = standing.after({**row, "rejected": 1}, clock.now_s)
    bar.show(standing)
    with console.capture() as captured:
        console.print(bar.render())
    first, second = captured.get().splitlines()
    assert first.startswith("round 1,204/1,500  ━")
    assert first.rstrip().endswith("16 clients/s  4 h 06 min left")
    assert second == "loss 0.5322   accuracy 87.1 %   test 85.3 %   2 updates rejected"
    assert max(len(first), len(second)) <= 80


def test_the_bar_says_that_it_is_starting_before_there_is_a_round(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(LiveBar(console, clock).render())
    assert captured.get() == "starting ...\n"


def test_silence_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    show: Progress = Silent()
    with show:
        show.started(["this process"])
        show.row({"round": 0})
    assert capfd.readouterr() == ("", "")


def test_errors_pass_through(clock: Clock, stream: io.StringIO) -> None:
    for show in (Silent(), Terminal(LogLines(stream), 3, clock)):
        with pytest.raises(KeyError), show:
            raise KeyError
