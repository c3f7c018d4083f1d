"""Changes files as accidents and strangers do: cut off, flipped bits, pieces moved, other kinds in their place."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Change = Callable[[bytes, random.Random], bytes]

ODD_TEXTS = ["", "../../x", "$\\frac$", "<script>", "\ud800", "x" * 5000, "\x1b[2J\n", "nan", "%s{0}", "/etc/passwd"]
ODD_NUMBERS = [-1, 0, 2**31, 2**63, 10**400, -(2**63), 1e308, float("nan"), float("inf"), 0.5]


def nested(depth: int = 3000) -> bytes:
    """Lists in one another, deeper than a parser that calls itself can follow."""
    return b"[" * depth + b"]" * depth


def cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def flip(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 8, 64])):
        if changed:
            changed[_place(changed, chance)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def overwrite(content: bytes, chance: random.Random) -> bytes:
    """Extreme numbers where a length or an offset may stand."""
    changed = bytearray(content)
    number = chance.choice([b"\xff", b"\x7f", b"\0", b"\x80"]) * chance.choice([1, 2, 4, 8])
    at = _place(changed, chance) if changed else 0
    changed[at : at + len(number)] = number
    return bytes(changed)


def splice(content: bytes, chance: random.Random) -> bytes:
    """One piece in the place of another."""
    piece, (begin, end) = content[slice(*_piece(content, chance))], _piece(content, chance)
    return content[:begin] + piece + content[end:]


def duplicate(content: bytes, chance: random.Random) -> bytes:
    begin, end = _piece(content, chance)
    return content[:end] + content[begin:end] * chance.choice([1, 1, 2, 50]) + content[end:]


def drop(content: bytes, chance: random.Random) -> bytes:
    begin, end = _piece(content, chance)
    return content[:begin] + content[end:]


def other(content: bytes, chance: random.Random) -> bytes:
    """Another content altogether."""
    return chance.choice(
        [b"", b"\0" * 100, b"{}", b"[]", b"null", b"1", b'""', nested(), b"\xff\xfe", b"\xef\xbb\xbf{}", bytes(8)]
    )


def odd_json(content: bytes, chance: random.Random) -> bytes:
    """JSON with one value, key or item replaced, removed or moved; other content is flipped."""
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        return flip(content, chance)
    owner: Any = table
    while True:
        keys = list(owner) if isinstance(owner, dict) else list(range(len(owner))) if isinstance(owner, list) else []
        if not keys:
            return other(content, chance)
        key = chance.choice(keys)
        if not (isinstance(owner[key], dict | list) and owner[key]) or chance.random() < 0.2:
            break
        owner = owner[key]
    match chance.randrange(4):
        case 0:
            del owner[key]
        case 1 if isinstance(owner, dict):
            owner[chance.choice(ODD_TEXTS)] = owner.pop(key)
        case 2:
            owner[key] = chance.choice([None, True, [], {}, [[1]], {"a": {}}, [owner[key]], {"name": owner[key]}])
        case _:
            owner[key] = chance.choice([*ODD_TEXTS, *ODD_NUMBERS])
    return json.dumps(table).encode()


def odd_table(content: bytes, chance: random.Random) -> bytes:
    """A table in Parquet with a column of other values, of another type or name, or with other rows or metadata."""
    try:
        return _odd_table(pq.read_table(pa.BufferReader(content)), chance)
    except (pa.ArrowException, OSError, ValueError):
        # It is not a table, or was changed before.
        return flip(content, chance)


def _odd_table(table: pa.Table, chance: random.Random) -> bytes:
    about, rows = dict(table.schema.metadata or {}), table.num_rows
    place = chance.randrange(max(1, table.num_columns))
    match chance.randrange(6):
        case 0 if table.num_columns:
            table = table.set_column(place, table.column_names[place], odd_column(rows, chance))
        case 1 if table.num_columns and rows:
            values = table.column(place).to_pylist()
            values[chance.randrange(rows)] = chance.choice([None, *values])
            table = table.set_column(place, table.column_names[place], pa.array(values, table.column(place).type))
        case 2 if table.num_columns:
            names = table.column_names
            names[place] = chance.choice([*(text for text in ODD_TEXTS if text != "\ud800"), *names])
            table = table.rename_columns(names)
        case 3 if rows:
            taken = [chance.randrange(rows) for _ in range(chance.choice([0, 1, rows, 2 * rows]))]
            table = table.take(pa.array(taken, pa.int64()))
        case 4 if table.num_columns:
            table = table.drop_columns([table.column_names[place]])
        case _:
            for key, value in about.items():
                if value.startswith(b"{"):
                    about[key] = odd_json(value, chance)
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(about), sink)
    made: bytes = sink.getvalue().to_pybytes()
    return made


def odd_column(rows: int, chance: random.Random) -> pa.Array:
    """A column of one odd value, of any type."""
    value, kind = chance.choice(ODD_VALUES)
    return pa.array([value] * rows, kind)


ODD_VALUES: list[tuple[Any, pa.DataType]] = [
    (float("nan"), pa.float64()),
    (float("inf"), pa.float32()),
    (1e308, pa.float64()),
    (-1.0, pa.float64()),
    (0.5, pa.float64()),
    (-1, pa.int64()),
    (2**63 - 1, pa.int64()),
    (2**64 - 1, pa.uint64()),
    (True, pa.bool_()),
    (None, pa.null()),
    (None, pa.float64()),
    ("../../x", pa.string()),
    ("nan", pa.string()),
    (b"\xff", pa.binary()),
    ([], pa.list_(pa.float64())),
    ([[1.0]], pa.list_(pa.list_(pa.float64()))),
    ([None, float("nan")], pa.list_(pa.float32())),
    ({"a": 1}, pa.struct([("a", pa.int64())])),
    (0, pa.timestamp("ns")),
    (-(2**40), pa.time64("us")),
    ("x", pa.dictionary(pa.int8(), pa.string())),
]


def odd_toml(content: bytes, chance: random.Random) -> bytes:
    """TOML with one value or key replaced, or a line once more; other content has no such lines."""
    lines = content.decode("utf-8", "replace").splitlines()
    places = [place for place, line in enumerate(lines) if "=" in line]
    if not places:
        return flip(content, chance)
    place = chance.choice(places)
    key, _, value = lines[place].partition("=")
    match chance.randrange(4):
        case 0:
            lines[place] = f"{key}= {chance.choice(ODD_TOML)}"
        case 1:
            lines[place] = f"{chance.choice(ODD_KEYS)} ={value}"
        case 2:
            lines.insert(chance.randrange(len(lines) + 1), lines[place])
        case _:
            lines[place] = f"{key}= [{value}, {chance.choice(ODD_TOML)}]"
    return "\n".join(lines).encode()


ODD_TOML = [
    *("nan", "-inf", "1e308", "-0.0", "5e-324", "9223372036854775807", "-9223372036854775808", "9" * 400, "0xffffffff"),
    *('""', '"../../x"', r'"\u0000"', r'"\U0001F600"', "'''\n'''", "true", "[]", "{}", "[[]]", "{a = {b = {c = 1}}}"),
    *("1979-05-27T07:32:00Z", "07:32:00", f'"{"x" * 5000}"', "[" * 300 + "]" * 300, '"/etc/passwd"', "1_0"),
]
ODD_KEYS = ['""', '"../x"', "a.b.c.d", r'"\u0000"', "__class__", "name", '"é"', "1", "x" * 3000, "a." * 400 + "b"]


def odd_lines(content: bytes, chance: random.Random) -> bytes:
    """JSON, or lines of it, as no JSON writer makes it: keys twice, huge numbers, other encodings and ends of lines."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return other(content, chance)
    place = chance.randrange(len(lines))
    line, end = lines[place].rstrip(b"\r\n"), b"\n"
    match chance.randrange(8):
        case 0:
            line = cut(line, chance)
        case 1:
            line = odd_json(line, chance)
        case 2 | 3:
            # In the place of a value, or of a piece of a text.
            begins = [at + 1 for at, letter in enumerate(line) if letter in b':,[" '] or [0]
            begin = chance.choice(begins)
            line = line[:begin] + chance.choice(ODD_JSON) + line[begin + chance.choice([0, 1, 1, 2, 8]) :]
        case 4:
            line = _key_again(line, chance)
        case 5:
            encoding = chance.choice(["utf-16", "utf-32", "utf-16-le", "utf-8-sig", "utf-7"])
            line = line.decode("latin-1").encode(encoding)
        case 6:
            end = chance.choice([b"", b"\r", b"\r\n", b"\x0b", b"\0", "\u2028".encode(), b"\n\n  \n", b" \n{}\n"])
        case _:
            lines = (
                [each.decode("latin-1").encode("utf-16") for each in lines] if chance.random() < 0.5 else lines[::-1]
            )
            return b"".join(lines)
    return b"".join([*lines[:place], line + end, *lines[place + 1 :]])


def _key_again(line: bytes, chance: random.Random) -> bytes:
    """An object with one of its keys a second time, with another value."""
    try:
        table = json.loads(line)
    except (ValueError, RecursionError):
        return flip(line, chance)
    if not (isinstance(table, dict) and table):
        return odd_json(line, chance)
    key = json.dumps(chance.choice(list(table))).encode()
    return line.rstrip()[:-1] + b", " + key + b": " + chance.choice(ODD_JSON) + b"}"


ODD_JSON = [
    *(b"1e400", b"-0", b"1" * 5000, b"NaN", b"-Infinity", b"9223372036854775808", b"4294967295", b"1e9", b"2147483648"),
    *(b'""', b'"\\ud800"', b'"\\u0000"', b'"\xff"', b"null", b"{}", b"[]", b"true", nested()),
    b'"' + b"x " * 9000 + b'"',
]


CHANGES: dict[str, Change] = {
    each.__name__: each
    for each in (cut, flip, overwrite, splice, duplicate, drop, other, odd_json, odd_lines, odd_table, odd_toml)
}


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def lost_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def link_above(path: Path) -> None:
    """A link to the folder above: a walk that follows it comes back."""
    path.unlink()
    path.symlink_to("..")


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def gone(path: Path) -> None:
    path.unlink()


def copied(path: Path) -> None:
    """As a file manager copies."""
    shutil.copyfile(path, path.with_name(f"{path.stem} (copy){path.suffix}"))


REPLACEMENTS: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (folder, pipe, circle, lost_link, link_above, device, gone, copied)
}


def mutate(file: Path, kind: str, seed: int) -> None:
    """Change a file, by one of CHANGES or REPLACEMENTS."""
    if kind in REPLACEMENTS:
        REPLACEMENTS[kind](file)
    else:
        file.write_bytes(CHANGES[kind](file.read_bytes(), random.Random(seed)))


def _place(content: bytes | bytearray, chance: random.Random) -> int:
    """A place; headers and footers are short, and most of a file's form is in them."""
    near = min(len(content), 300)
    match chance.randrange(3):
        case 0:
            return chance.randrange(near)
        case 1:
            return len(content) - 1 - chance.randrange(near)
        case _:
            return chance.randrange(len(content))


def _piece(content: bytes, chance: random.Random) -> tuple[int, int]:
    begin = chance.randrange(len(content) + 1)
    return begin, min(len(content), begin + chance.choice([1, 4, 8, 64, 1000]))
