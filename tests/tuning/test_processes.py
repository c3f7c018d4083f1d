"""Several processes on one study: the log's laws, and that every storage keeps them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuning import processes
from tuning.errors import StudyError
from tuning.processes import Log, Processes
from tuning.storage import open_storage


def log(*said: dict[str, Any]) -> Log:
    rows: list[FrozenTrial] = []
    for number, each in enumerate(said):
        row = create_trial(value=0.0, user_attrs=each)
        row.number = number
        rows.append(row)
    return Log.read(reversed(rows))


def slots(process: int, count: int = 1) -> dict[str, Any]:
    return {"kind": "slots", "count": count, "process": process}


def heir(of: int, process: int) -> dict[str, Any]:
    return {"kind": "heir", "of": of, "process": process}


def take(what: str, process: int) -> dict[str, Any]:
    return {"kind": "take", "what": what, "process": process}


def test_slots_are_numbered_in_the_order_of_the_rows() -> None:
    assert log(slots(3), take("final", 1), slots(5, 2), slots(3)).slots == (3, 5, 5, 3)


def test_of_several_that_take_the_same_the_first_has_it() -> None:
    assert log(take("final", 2), take("final", 1), take("other", 1)).taken == {"final": 2, "other": 1}


def test_what_was_inherited_is_inherited_again() -> None:
    rows = log(heir(0, 1), heir(0, 2), heir(1, 3))
    assert [rows.owner(process) for process in range(5)] == [3, 3, 2, 3, 4]


def test_two_that_take_each_other_for_gone_do_not_both_go_on() -> None:
    rows = log(heir(0, 1), heir(1, 0))
    assert (rows.owner(0), rows.owner(1)) == (1, 1)


def test_the_storages_agree_on_who_has_which_slot(url: str) -> None:
    kept: list[tuple[int, Log]] = []

    def work() -> None:
        with open_storage(url) as storage, Processes(storage, "study") as processes:
            for count in (1, 3, 1):
                processes.take_slots(count)
            processes.take("final")
            kept.append((processes.number, processes.read()))

    threads = [threading.Thread(target=work) for _ in range(3)]
    with open_storage(url) as storage, Processes(storage, "study") as first:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole = first.read()
    assert len(kept) == 3
    assert {number: whole.slots.count(number) for number, _ in kept} == {number: 5 for number, _ in kept}
    for _, seen in kept:
        # What a process sees is the beginning of what there is in the end.
        assert whole.slots[: len(seen.slots)] == seen.slots
        assert seen.taken == whole.taken
    assert whole.left == {number for number, _ in kept}


def test_several_processes_can_be_the_first_on_a_storage(url: str) -> None:
    ready = threading.Barrier(4)
    met: list[int] = []

    def work() -> None:
        ready.wait()
        with open_storage(url) as storage, Processes(storage, "study") as processes:
            met.append(processes.number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(met) == [0, 1, 2, 3]


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What raysim said: how much Optuna says depends on who imported it."""
    return [record.getMessage() for record in caplog.records if record.name == "raysim"]


def test_only_what_has_ended_is_inherited_from(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with open_storage(url) as storage, Processes(storage, "study") as alive, Processes(storage, "study") as heir:
        with Processes(storage, "study") as gone:
            gone.take_slots(1)
        assert not heir.inherit(heir.read(), [alive.number, heir.number])
        assert not ours(caplog)
        assert heir.inherit(heir.read(), [gone.number])
        assert [said[:24] for said in ours(caplog)] == ["taking over from process"]
        assert heir.read().owner(heir.read().slots[0]) == heir.number


def test_on_another_machine_silence_is_all_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    elsewhere = {"machine": "elsewhere", "pid": 1, "started": "0"}
    url = f"sqlite:///{tmp_path / 'study.db'}"
    with open_storage(url) as storage, Processes(storage, "study", silent_s=0.0) as heir:
        with monkeypatch.context() as there:
            there.setattr(processes, "this_process", lambda: elsewhere)
            other = Processes(storage, "study")
            other.__enter__()
        rows = heir.read()
        other_id = storage.get_trial_id_from_study_id_trial_number(
            storage.get_study_id_from_name("study/processes"), other.number
        )
        # It is seen for the first time: nobody knows how long it has been silent.
        assert not heir.inherit(rows, [other.number])
        storage.set_trial_user_attr(other_id, "beat", 7)
        assert not heir.inherit(heir.read(), [other.number])
        assert heir.inherit(heir.read(), [other.number])
        with pytest.raises(StudyError, match="another one has taken over its trials"):
            other.read()
        other.__exit__(None, None, None)


def test_a_process_that_ends_says_so(tmp_path: Any) -> None:
    with open_storage(f"sqlite:///{tmp_path / 'study.db'}") as storage:
        with Processes(storage, "study") as one:
            pass
        row = storage.get_all_trials(storage.get_study_id_from_name("study/processes"))[0]
    assert row.state == TrialState.COMPLETE
    assert one.number == 0


def test_this_process_is_seen_and_one_that_is_not_there_is_not() -> None:
    here = processes.this_process()
    assert processes.has_ended(here) is False
    assert processes.has_ended({**here, "started": "1"}) is True
    assert processes.has_ended({**here, "pid": 2**22 + 1}) is True
    assert processes.has_ended({**here, "machine": "elsewhere"}) is None


def test_a_row_that_no_process_writes_is_named() -> None:
    for row in ({"kind": "other"}, {}, take("final", "1"), slots(0, -1), slots(0, 10**12), heir(3, 3)):  # type: ignore[arg-type]
        with pytest.raises(StudyError, match="Row 0 of the study's processes is damaged"):
            log(row)
