"""How the house is built: what tests share, where modules lie, what they are called and how they begin."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

Sources = Mapping[str, str]
"""Files by their paths below the root."""


def sources(*folders: str) -> Sources:
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


# What tests share


def imports_of_tests(files: Sources) -> set[tuple[str, str]]:
    """Which file imports which module of the tests, but for those that tests share."""
    found = set()
    for file, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = ["." * node.level + (node.module or "")]
                # `from tests import x`, `from . import x`
                if modules[0] in ("tests", "."):
                    modules = [f"{modules[0]}.{alias.name}" for alias in node.names]
            else:
                continue
            found |= {(file, module) for module in modules if module.startswith((".", "tests", "conftest", "test_"))}
    return {(file, module) for file, module in found if module.split(".")[:2] != ["tests", "support"]}


def test_no_test_module_imports_another_one() -> None:
    assert not imports_of_tests(sources("tests"))


@pytest.mark.parametrize(
    "line",
    [
        "from tests.test_fold import total",
        "import tests.engine.test_executors",
        "from tests import conftest",
        "from .conftest import python",
        "from . import test_fold",
        "from test_fold import total",
        "def late():\n    from tests.conftest import dataset",
    ],
)
def test_an_import_of_a_test_module_is_found(line: str) -> None:
    assert len(imports_of_tests({"tests/test_x.py": line})) == 1


def test_what_tests_share_may_be_imported() -> None:
    lines = "import pytest\nfrom tests.support import tiny\nimport tests.support.nodes"
    assert not imports_of_tests({"tests/test_x.py": lines})


# Messages


def with_full_stops(files: Sources) -> list[str]:
    """Where a message goes on behind an error with a full stop: the error's own text may end with one."""
    found = []
    for file, text in files.items():
        for handler in ast.walk(ast.parse(text)):
            if not isinstance(handler, ast.ExceptHandler):
                continue
            pairs = [
                pair for node in ast.walk(handler) if isinstance(node, ast.JoinedStr) for pair in pairwise(node.values)
            ]
            found += [
                f"{file}:{shown.lineno}"
                for shown, then in pairs
                if isinstance(shown, ast.FormattedValue)
                and ast.unparse(shown.value) in (handler.name, f"str({handler.name})")
                and shown.conversion == -1
                and isinstance(then, ast.Constant)
                and str(then.value).startswith(".")
            ]
    return found


def test_no_message_has_two_full_stops() -> None:
    assert with_full_stops(sources("raysim", "tuning")) == []


def test_an_error_before_a_full_stop_is_found_unless_its_own_is_left_out() -> None:
    message = "try:\n    act()\nexcept OSError as error:\n    raise Own(f'it fails: {%s}. Try again.')"
    files = {name: message % name for name in ("error", "str(error)", "within(error)", "error!r", "error.strerror")}
    assert with_full_stops(files) == ["error:4", "str(error):4"]


def unbounded(files: Sources) -> list[str]:
    """Where a message shows what a function returned, and not by `shown`: it may be a model's size."""
    return [file for file, text in files.items() if re.search(r"returned \{\w+!r\}", text)]


def test_messages_bound_what_a_function_returned() -> None:
    assert unbounded(sources("raysim", "tuning")) == []
    messages = {"made!r": 'f"it returned {made!r}."', "shown": 'f"it returned {shown(made)}, but not {name!r}"'}
    assert unbounded(messages) == ["made!r"]


# Names of classes

TWINS = {"CausalSelfAttention", "Linear", "Lstm", "Positions", "Residual", "Tied"}
"""A layer of a model, and its form for one client and for a stack of them."""


def classes_by_name(files: Sources) -> dict[str, list[str]]:
    """Where classes of each name are, nested ones too."""
    found: dict[str, list[str]] = {}
    for file, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(file)
    return found


def ambiguous(files: Sources, twins: Iterable[str] = ()) -> dict[str, list[str]]:
    """Names of several classes; of a layer there may be two, one of them in `layers/`."""

    def are_twins(name: str, at: list[str]) -> bool:
        return name in twins and len(at) == 2 and sum("/layers/" in file for file in at) == 1

    found = classes_by_name(files)
    return {name: at for name, at in found.items() if len(at) > 1 and not are_twins(name, at)}


def test_the_name_of_a_class_is_its_own() -> None:
    found = ambiguous(sources("raysim", "tuning"), TWINS)
    assert found == {}


def test_a_name_that_stands_twice_is_found_unless_it_is_a_layers() -> None:
    files = {"a.py": "class Tied: pass\nclass Row: pass", "layers/b.py": "class Tied: pass", "c.py": "class Row: pass"}
    files = {f"raysim/{path}": text for path, text in files.items()}
    assert set(ambiguous(files, {"Tied"})) == {"Row"}
    assert set(ambiguous(files)) == {"Row", "Tied"}
    assert set(ambiguous({**files, "raysim/d.py": "class Tied: pass"}, {"Tied"})) == {"Row", "Tied"}
    assert set(ambiguous({"one.py": "class A: pass\ndef f():\n    class A: pass"})) == {"A"}


# Names of types


def aliases_of_several(files: Sources) -> dict[str, list[str]]:
    """Aliases of one name and one type, with the modules that assign them, where these are several."""
    found: dict[tuple[str, str], list[str]] = {}
    for file, text in files.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
                (target,) = node.targets
                found.setdefault((ast.unparse(target), ast.unparse(node.value)), []).append(file)
    return {name: at for (name, _), at in found.items() if len(at) > 1}


# The state of an optimizer, of a sampler, of a fair objective and of FedGLAD are four things of one type.
STATES = {"State"}


def test_an_alias_of_a_type_is_assigned_once() -> None:
    assert set(aliases_of_several(sources("raysim", "tuning"))) <= STATES


def test_an_alias_that_is_assigned_twice_is_found() -> None:
    lines = {"a.py": "Row = Mapping[str, Any]\nKey = tuple[int, str]", "b.py": "Row = Mapping[str, Any]\nKey = int"}
    assert aliases_of_several(lines) == {"Row": ["a.py", "b.py"]}


# Counts


def with_bracketed_plurals(files: Sources) -> list[str]:
    """Where a text has "(s)" for a plural: `counted` writes a count with its noun."""
    return [
        f"{file}:{node.lineno}"
        for file, text in files.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"[a-z]\(s\)", node.value)
    ]


def test_no_text_has_a_plural_in_brackets() -> None:
    assert with_bracketed_plurals(sources("raysim", "tuning")) == []
    assert with_bracketed_plurals({"a.py": 'f"{n} round(s)"', "b.py": 'f"{n} rounds (s)"'}) == ["a.py:1"]


# Classes that inherit


def reaching_in(files: Sources) -> dict[str, list[str]]:
    """Classes that inherit a concrete class, with the attributes of its instances that they use or write."""
    nodes = [node for text in files.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    classes = {node.name: node for node in nodes}
    found = {}
    for name, node in classes.items():
        bases = [classes[base] for base in map(ast.unparse, node.bases) if base in classes]
        theirs = {attribute for base in bases if not is_abstract(base) for attribute in written(base)}
        if used := theirs & uses(node):
            found[name] = sorted(used)
    return found


def is_abstract(node: ast.ClassDef) -> bool:
    return bool({ast.unparse(base).partition("[")[0] for base in node.bases} & {"ABC", "Protocol"})


def written(node: ast.ClassDef) -> set[str]:
    """Attributes that a class's methods write, and private methods."""
    methods = {child.name for child in node.body if isinstance(child, ast.FunctionDef) and child.name.startswith("_")}
    stored = {child.attr for child in own_attributes(node) if isinstance(child.ctx, ast.Store)}
    return stored | {method for method in methods if not method.endswith("__")}


def uses(node: ast.ClassDef) -> set[str]:
    return {child.attr for child in own_attributes(node)}


def own_attributes(node: ast.ClassDef) -> list[ast.Attribute]:
    """`self.x`, wherever it stands."""
    return [
        child for child in ast.walk(node) if isinstance(child, ast.Attribute) and ast.unparse(child.value) == "self"
    ]


def test_no_class_reaches_into_a_concrete_class_that_it_inherits() -> None:
    assert reaching_in(sources("raysim", "tuning", "manual")) == {}


def test_a_class_that_reaches_into_another_is_found() -> None:
    base = "class Base%s:\n    def __init__(self):\n        self._sent = 1\n    def _put(self): ...\n"
    writes = "class Heir(Base):\n    def send(self):\n        self._sent = 2\n"
    calls = "class Heir(Base):\n    def send(self):\n        self._put()\n"
    holds = "class Heir:\n    def send(self):\n        self._base.put()\n"
    assert reaching_in({"a.py": base % "", "b.py": writes}) == {"Heir": ["_sent"]}
    assert reaching_in({"a.py": base % "", "b.py": calls}) == {"Heir": ["_put"]}
    assert reaching_in({"a.py": base % "(ABC)", "b.py": writes}) == {}
    assert reaching_in({"a.py": base % "", "b.py": holds}) == {}


def heirs_of_heirs(files: Sources) -> dict[str, list[str]]:
    """Classes with a base that itself inherits from one of ours, by name; exceptions and protocols are left out."""
    nodes = [node for text in files.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    bases = {node.name: [ast.unparse(base).partition("[")[0] for base in node.bases] for node in nodes}

    def ours(name: str) -> list[str]:
        return [base for base in bases.get(name, []) if base in bases and "Protocol" not in bases[base]]

    def is_exception(name: str) -> bool:
        return name in ("Exception", "BaseException") or any(map(is_exception, bases.get(name, [])))

    found = {name: [base for base in ours(name) if ours(base)] for name in bases if not is_exception(name)}
    return {name: at for name, at in found.items() if at}


def test_no_class_inherits_from_a_class_that_inherits() -> None:
    assert heirs_of_heirs(sources("raysim", "tuning", "manual")) == {}


def test_an_heir_of_an_heir_is_found() -> None:
    section = "class Section(BaseModel): ...\n"
    below = section + "class Keys(Section): ...\nclass Sent(Keys): ...\n"
    beside = section + "class Keys(BaseModel): ...\nclass Sent(Keys, Section): ...\n"
    generic = "class A(Generic[T]): ...\nclass B(A[int]): ...\nclass C(B): ...\n"
    protocol = "class Reads(Protocol): ...\nclass A(Reads): ...\nclass B(A): ...\n"
    errors = "class A(Exception): ...\nclass B(A): ...\nclass C(B, ValueError): ...\n"
    assert heirs_of_heirs({"a.py": below}) == {"Sent": ["Keys"]}
    assert heirs_of_heirs({"a.py": generic}) == {"C": ["B"]}
    assert [heirs_of_heirs({"a.py": text}) for text in (beside, protocol, errors)] == [{}, {}, {}]


# Docstrings

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def misnamed_args(files: Sources) -> list[str]:
    """Names below `Args:` that are no parameter of the function, or of the class: a field, or one of `__init__`."""
    return [
        f"{file}: {node.name} has no {name}"
        for file, text in files.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, Documented)
        for name in listed_args(ast.get_docstring(node) or "")
        if name not in parameters(node)
    ]


def listed_args(docstring: str) -> list[str]:
    section = re.search(r"^Args:\n((?: {4}.*\n?)+)", docstring, re.MULTILINE)
    heads = re.findall(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*):", section.group(1), re.MULTILINE) if section else []
    return [name.lstrip("*") for head in heads for name in head.split(", ")]


def parameters(node: Documented) -> set[str]:
    if isinstance(node, ast.ClassDef):
        fields = {ast.unparse(child.target) for child in node.body if isinstance(child, ast.AnnAssign)}
        inits = [child for child in node.body if isinstance(child, ast.FunctionDef) and child.name == "__init__"]
        return fields.union(*map(parameters, inits))
    return {child.arg for child in ast.walk(node.args) if isinstance(child, ast.arg)}


def test_what_a_docstring_lists_is_a_parameter() -> None:
    assert misnamed_args(sources("raysim", "tuning", "manual")) == []


def test_a_listed_name_that_is_no_parameter_is_found() -> None:
    lines = (
        "Do it.",
        "",
        "Args:",
        "    a, *b: two,",
        "        not: one.",
        "    c: a third.",
        "",
        "Raises:",
        "    d: no.",
    )
    listed = "".join(f"    {line}\n" for line in ('"""', *lines, '"""'))
    files = {
        "function.py": f"def f(a, *b):\n{listed}",
        "fields.py": f"class F:\n{listed}    a: int\n    b: int\n",
        "init.py": f"class G:\n{listed}    def __init__(self, a, /, *, b=1): ...\n",
        "right.py": f"async def g(a, *b, c):\n{listed}",
    }
    assert misnamed_args(files) == ["function.py: f has no c", "fields.py: F has no c", "init.py: G has no c"]


# Modules

MODULES_ABOVE = {
    "raysim/arrays.py",
    "raysim/card.py",
    "raysim/__init__.py",
    "raysim/__main__.py",
    "raysim/errors.py",
    "raysim/seeds.py",
}
"""All modules directly below raysim/: everything else has a room."""


def modules_in(files: Sources, folder: str) -> list[str]:
    """Modules directly in a folder."""
    return [file for file in files if Path(file).parent.as_posix() == folder]


def badly_begun(files: Sources) -> dict[str, str]:
    """First lines of modules that are not one sentence of at most 120 characters; a file may be empty."""
    found = {}
    for file, text in files.items():
        head = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        if text.strip() and not (head.endswith(".") and len(head) <= 120):
            found[file] = head
    return found


def test_few_modules_lie_directly_below_the_root() -> None:
    assert set(modules_in(sources("raysim"), "raysim")) == MODULES_ABOVE


def test_the_architecture_page_has_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {folder.parent.name for folder in (ROOT / "raysim").glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE))


def test_modules_in_folders_are_not_directly_below() -> None:
    assert modules_in({"raysim/a.py": "", "raysim/b/c.py": "", "d.py": ""}, "raysim") == ["raysim/a.py"]


def test_a_module_begins_with_one_sentence() -> None:
    found = badly_begun(sources("raysim", "tuning"))
    assert found == {}


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ('"""Adds up."""\n', False),
        ('"""Adds up.\n\nIn a tree.\n"""\n', False),
        ("", False),
        ("x = 1\n", True),
        ('"""Adds up"""\n', True),
        ('"""Adds up,\nin a tree.\n"""\n', True),
        (f'"""{"a" * 119}."""\n', False),
        (f'"""{"a" * 120}."""\n', True),
    ],
)
def test_another_beginning_is_found(text: str, is_found: bool) -> None:
    assert bool(badly_begun({"raysim/a.py": text})) is is_found


# What only one module asks for


def test_only_one_module_calls_torch_cuda() -> None:
    """Tests without a card stand in for that one (`tests/support/fake_card.py`)."""
    callers = {file for file, text in sources("raysim", "tuning", "manual").items() if asks_for_cuda(text)}
    assert callers == {"raysim/card.py"}


def asks_for_cuda(text: str) -> bool:
    nodes = list(ast.walk(ast.parse(text)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {f"{node.module}" for node in nodes if isinstance(node, ast.ImportFrom)}
    called = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    return any(name == "torch.cuda" or name.startswith("torch.cuda.") for name in imported | called)


@pytest.mark.parametrize("line", ["torch.cuda.synchronize()", "import torch.cuda", "from torch.cuda import Stream"])
def test_a_call_of_torch_cuda_is_found(line: str) -> None:
    assert asks_for_cuda(line)
