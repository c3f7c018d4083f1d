"""Compiled code under AddressSanitizer and UBSan: no read or write beyond an array, on many shapes.

A driver in C hands it every array in memory of exactly its size; within the dense kernel's own memory, a gap that
nobody may touch lies behind every piece.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from raysim.client.trainers.kernel import depthwise, lstm, winograd
from raysim.client.trainers.kernel.dense import SOURCE
from raysim.storage import compiled_c

DRIVERS = Path(__file__).parents[2] / "support"
SANITIZE = (
    *("-std=gnu11", "-O0", "-g", "-fno-math-errno"),
    *("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"),
)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A C compiler with both sanitizers."""
    try:
        found = compiled_c._compiler()
    except compiled_c.NoLibraryError as error:
        pytest.skip(f"no C compiler: {error}")
    folder = tmp_path_factory.mktemp("empty")
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    tried = [*found, *SANITIZE, str(folder / "empty.c"), "-o", str(folder / "empty")]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    if done.returncode or subprocess.run([folder / "empty"], check=False).returncode:
        pytest.skip(f"{found[0]} has no sanitizers: {done.stderr.strip()[-200:]}")
    return found


def driven(
    compiler: list[str], source: Path, flags: list[str], folder: Path, driver: str = "kernel"
) -> subprocess.CompletedProcess[str]:
    """Compile a source with its driver, and run it."""
    made = folder / "driver"
    name = {"kernel": "DENSE_C", "winograd": "WINOGRAD_C", "lstm": "LSTM_C", "depthwise": "DEPTHWISE_C"}[driver]
    # A copy lies elsewhere than the headers that it includes.
    given = [
        f'-D{name}="{source}"',
        *flags,
        f"-I{SOURCE.path.parent}",
        str(DRIVERS / f"{driver}_driver.c"),
        "-o",
        str(made),
        "-lm",
    ]
    done = subprocess.run([*compiler, *SANITIZE, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run([made], capture_output=True, text=True, check=False)


# With the processor's own vectors and without: products take other numbers of rows and outputs at a time.
@pytest.mark.parametrize("flags", [["-DREAL=float", "-march=native"], ["-DREAL=double"]])
def test_the_kernel_stays_inside_its_arrays(compiler: list[str], flags: list[str], tmp_path: Path) -> None:
    done = driven(compiler, SOURCE.path, flags, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "3024 calls\n"


WRONG: dict[str, tuple[str, str, str]] = {
    "of its own memory": (
        "for (int64_t r = 0; r < rows; r++) sum += dy[r * ys + o];",
        "for (int64_t r = 0; r <= rows; r++) sum += dy[r * ys + o];",
        "use-after-poison",
    ),
    "of a window's mean": (
        "for (int64_t o = 0; o < outs; o++) to[dense->biases[l] + o] = from->b[l][o] / divisor;",
        "for (int64_t o = 0; o <= outs; o++) to[dense->biases[l] + o] = from->b[l][o] / divisor;",
        "",
    ),
    "of an array of Python's": (
        "copy(outputs + row * last, z, last);",
        "copy(outputs + row * last, z, last + 1);",
        "heap",
    ),
}


@pytest.mark.parametrize("where", WRONG)
def test_a_kernel_that_is_off_by_one_is_caught(compiler: list[str], where: str, tmp_path: Path) -> None:
    right, wrong, said = WRONG[where]
    text = SOURCE.path.read_text()
    assert text.count(right) == 1
    (tmp_path / "wrong.c").write_text(text.replace(right, wrong))
    done = driven(compiler, tmp_path / "wrong.c", ["-DREAL=float"], tmp_path)
    assert done.returncode != 0
    assert f"AddressSanitizer: {said}" in done.stderr


# With vectors of several widths, and by number where four cannot be turned at once.
@pytest.mark.parametrize("flags", [["-DREAL=float", "-march=native"], ["-DREAL=float"], ["-DREAL=double"]])
def test_minimal_filtering_stays_inside_its_arrays(compiler: list[str], flags: list[str], tmp_path: Path) -> None:
    done = driven(compiler, winograd.SOURCE.path, flags, tmp_path, "winograd")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "986 shapes\n"


FILTERED_WRONG: dict[str, tuple[str, str, str]] = {
    "beyond the maps": (
        "if (bias) memcpy(own, bias, of->out * sizeof(REAL));",
        "if (bias) memcpy(own, bias, (of->out + 1) * sizeof(REAL));",
        "AddressSanitizer: heap",
    ),
    "of a number": (
        "y[2] = RR * even + (SS * m[3] + m[4]);",
        "y[2] = RR * even + (S * m[3] + m[4]);",
        "in the place of",
    ),
    "of a number of the larger tiles": (
        "y[2] = PP * even_p + QQ * even_q;",
        "y[2] = PP * even_p + PP * even_q;",
        "in the place of",
    ),
    "of a number of the larger kernels": (
        "g[3] = (PP * P / AT_P) * odd_p + (QQ * Q / AT_Q) * odd_q;",
        "g[3] = (PP * P / AT_P) * odd_p + (QQ * P / AT_Q) * odd_q;",
        "in the place of",
    ),
}


@pytest.mark.parametrize("where", FILTERED_WRONG)
def test_minimal_filtering_that_is_off_is_caught(compiler: list[str], where: str, tmp_path: Path) -> None:
    right, wrong, said = FILTERED_WRONG[where]
    text = winograd.SOURCE.path.read_text()
    assert text.count(right) == 1
    (tmp_path / "wrong.c").write_text(text.replace(right, wrong))
    done = driven(compiler, tmp_path / "wrong.c", ["-DREAL=float"], tmp_path, "winograd")
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize(
    "flags",
    [["-DREAL=float", "-march=native"], ["-DREAL=double", "-march=native"], ["-DREAL=float"], ["-DREAL=double"]],
)
def test_the_passes_of_an_lstm_stay_inside_their_arrays(compiler: list[str], flags: list[str], tmp_path: Path) -> None:
    done = driven(compiler, lstm.SOURCE.path, flags, tmp_path, "lstm")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "495 shapes\n"


PASSES_WRONG: dict[str, tuple[str, str, str]] = {
    "beyond the states": (
        "for (int64_t j = 0; j < many; j++) o[i * wide + j]",
        "for (int64_t j = 0; j <= many; j++) o[i * wide + j]",
        "AddressSanitizer: heap",
    ),
    "of a place": (
        "const REAL *old = cells + (own.before + r) * n;",
        "const REAL *old = cells + r * n;",
        "in the place of",
    ),
    "of packed texts": (
        "step ? all + at - reaching[step - 1] : 0",
        "step ? at : 0",
        "in the place of",
    ),
    "behind the last packed place": (
        "const int64_t each = place.rows * n;",
        "const int64_t each = of->examples * n;",
        "AddressSanitizer: heap",
    ),
}


@pytest.mark.parametrize("where", PASSES_WRONG)
def test_passes_that_are_off_are_caught(compiler: list[str], where: str, tmp_path: Path) -> None:
    right, wrong, said = PASSES_WRONG[where]
    text = lstm.SOURCE.path.read_text()
    assert text.count(right) == 1
    (tmp_path / "wrong.c").write_text(text.replace(right, wrong))
    done = driven(compiler, tmp_path / "wrong.c", ["-DREAL=float"], tmp_path, "lstm")
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize(
    "flags",
    [["-DREAL=float", "-march=native"], ["-DREAL=double", "-march=native"], ["-DREAL=float"], ["-DREAL=double"]],
)
def test_gradients_of_depthwise_kernels_stay_inside_their_arrays(
    compiler: list[str], flags: list[str], tmp_path: Path
) -> None:
    done = driven(compiler, depthwise.SOURCE.path, flags, tmp_path, "depthwise")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "600 shapes\n"


DEPTHWISE_WRONG: dict[str, tuple[str, str, str]] = {
    "beyond the room": (
        "return LANES * (of->rows * of->columns + rows_of(of)",
        "return LANES * (of->rows * of->columns - 1 + rows_of(of)",
        "AddressSanitizer: heap",
    ),
    "of a number": (
        "UNROLLED for (int t = 0; t < taps; t++) own[t] += at",
        "UNROLLED for (int t = 0; t < taps - (taps == 7); t++) own[t] += at",
        "in the place of",
    ),
}


@pytest.mark.parametrize("where", DEPTHWISE_WRONG)
def test_a_gradient_of_depthwise_kernels_that_is_off_is_caught(compiler: list[str], where: str, tmp_path: Path) -> None:
    right, wrong, said = DEPTHWISE_WRONG[where]
    text = depthwise.SOURCE.path.read_text()
    assert text.count(right) == 1
    (tmp_path / "wrong.c").write_text(text.replace(right, wrong))
    done = driven(compiler, tmp_path / "wrong.c", ["-DREAL=float"], tmp_path, "depthwise")
    assert done.returncode != 0
    assert said in done.stderr
