"""The shape of the package: one list of names, imports that point down, small files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import lowtide

SOURCE = Path(lowtide.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MOST_LINES = 450
MOST_PARAMETERS = 8
MOST_FILES = 14  # of a room
MOST_TOP_FILES = 20  # where users look
# Calls of the user's that docs and README promise: their keyword-only options are as many as users need.
PROMISED_CALLS = {
    "open",
    "open_tokens",
    "create",
    "chunks",
    "shuffled",
    "gather",
    "sample",
    "batches",
    "windows",
    "mix",
}

PUBLIC = {
    "Array",
    "BudgetError",
    "Feed",
    "FormatError",
    "LowtideError",
    "Mixture",
    "ReadError",
    "StateError",
    "Together",
    "Tokens",
    "WriteError",
    "create",
    "mix",
    "open",
    "open_tokens",
    "release",
    "together",
    "watch",
}

# Rooms from the bottom up. A file may import from its own room and from rooms below.
LAYERS: list[set[str]] = [
    {"errors", "units", "arguments"},
    {"machine", "engine"},
    {"storage", "order", "memory"},
    {"blocks"},
    {"formats"},
    {"reading"},
    {"array", "create", "feed", "windows"},
    {"together"},
    {"tokens", "mixture"},  # what a user opens; its batches() makes feeds
    {"corpus"},  # prepare writes through its files
    {"prepare"},
    {"torch", "dask", "ray", "xgboost", "lightgbm", "survey", "report", "pytest_plugin", "notebook"},
    {"bench"},
    {"train"},
    {"cli"},
]
# Inside the rooms of the reading path, files from the bottom up: each may import only files before it.
INSIDE: dict[str, str] = {
    "engine": "runs column_sums id_checks packed_plans permutation mapping document_planes sinks reads",
    "order": "mixing words feistel orders local locality streams steps",
    "storage": "release forks own_files writing.behind writing.unfinished budget watched_files buffers spans"
    " writing.output read mapped many_files store",
    "blocks": "addresses messages block_file block_writing disk maker filling remote asking first_in_line objects marks"
    " block_store",
    "reading": "habits ahead fingerprint rows.indexing opened places rows.column_stats documents.docs"
    " documents.kept_arrays admission state cursor rows.parts plan mixtures.mixture_state rows.stratified"
    " rows.reader blocks_ahead token_range rows.resident rows.iteration window_reader documents.boundaries"
    " rows.member_rows mixtures.mixed documents.boundary_index documents.document_counts documents.packing"
    " documents.stride documents.packed",
}
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# The names a user has. Rooms above all of them may use them as a user does; below, that would be a circle.
TOP = {"__init__", "__main__"}
USERS = LEVEL["torch"]


# `cli` imports only the command in use; the package itself only measures when asked to.
# `peek` needs torch for a run's directory, and not for a corpus. pytest loads the plugin into every run of the machine.
LAZY = {
    "cli/__init__.py",
    "cli/peek.py",
    "__init__.py",
    "pytest_plugin/__init__.py",
    "report/__init__.py",  # a doctor that watches loads neither rich nor an HTTP server
}


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def own_imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every import of our own modules, as (statement, module)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "lowtide":
                    yield node, name.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            if node.module and node.module.split(".")[0] == "lowtide":
                for name in node.names:
                    deeper = f"{node.module}.{name.name}"
                    yield node, deeper if is_module(deeper) else node.module


def is_module(name: str) -> bool:
    place = SOURCE.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_the_exported_names_are_exactly_the_promised_ones() -> None:
    assert set(lowtide.__all__) == PUBLIC
    assert list(lowtide.__all__) == sorted(lowtide.__all__)
    assert all(hasattr(lowtide, name) for name in PUBLIC)


def test_every_room_has_a_layer() -> None:
    rooms = {room_of(module_of(path)) for path in FILES} - TOP
    assert rooms <= set(LEVEL), f"rooms without a layer: {sorted(rooms - set(LEVEL))}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_imports_point_down(path: Path) -> None:
    room = room_of(module_of(path))
    if room in TOP:
        return
    for node, module in own_imports(parsed(path)):
        other = room_of(module)
        if other in TOP:
            assert LEVEL[room] >= USERS, f"line {node.lineno}: imports the top of the package"
            continue
        assert LEVEL[other] <= LEVEL[room], f"line {node.lineno}: {room} imports {other}, which is above it"


@pytest.mark.parametrize("room", INSIDE)
def test_files_of_the_reading_path_import_only_files_below_them(room: str) -> None:
    files = INSIDE[room].split()
    paths = {name_in(room, path): path for path in (SOURCE / room).rglob("*.py") if path.stem != "__init__"}
    assert set(paths) == set(files), f"not in order: {sorted(set(paths) ^ set(files))}. Give each its place in INSIDE."
    for name, path in paths.items():
        below = set(files[: files.index(name)])
        used = {module.removeprefix(f"lowtide.{room}.") for _, module in own_imports(parsed(path))} & set(files)
        assert used <= below, f"{name} imports {sorted(used - below)}, which stand above it"


def name_in(room: str, path: Path) -> str:
    return ".".join(path.relative_to(SOURCE / room).with_suffix("").parts)


def test_no_room_has_more_than_a_dozen_files_or_so() -> None:
    rooms: dict[str, int] = {}
    for path in FILES:
        room = str(path.parent.relative_to(SOURCE))
        rooms[room] = rooms.get(room, 0) + 1
    top = rooms.pop(".")
    assert top <= MOST_TOP_FILES, f"{top} files at the top"
    assert not {room: count for room, count in rooms.items() if count > MOST_FILES}


def test_no_modules_import_each_other_in_a_circle() -> None:
    needs = {module_of(path): {module for _, module in own_imports(parsed(path))} for path in FILES}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"circle: {' -> '.join([*above[above.index(module) :], module])}"
        if module not in done:
            for other in needs.get(module, ()):
                visit(other, (*above, module))
            done.add(module)

    for module in needs:
        visit(module, ())


@pytest.mark.parametrize("path", FILES, ids=named)
def test_no_import_of_our_own_hides_inside_a_function(path: Path) -> None:
    if named(path) in LAZY:
        return
    tree = parsed(path)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    hidden = {node.lineno for function in functions for node, _ in own_imports(function)}
    assert not hidden, f"imports inside functions at lines {sorted(hidden)}"
    dynamic = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "import_module"]
    assert not dynamic, f"importlib.import_module at lines {[node.lineno for node in dynamic]}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{lines} lines"
    assert ast.get_docstring(parsed(path)), "no docstring"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_callables_have_few_parameters(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            given = node.args
            promised = getattr(node, "name", "") in PROMISED_CALLS
            options = [] if promised else given.kwonlyargs
            names = [one.arg for one in (*given.posonlyargs, *given.args, *options)]
            names = [name for name in names if name not in ("self", "cls")]
            assert len(names) <= MOST_PARAMETERS, f"line {node.lineno}: {len(names)} parameters"


def test_no_file_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "common", "base", "helpers", "misc", "config"}
    assert not [named(path) for path in FILES if path.stem in empty]


def test_the_package_says_that_it_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_value_is_made_behind_a_lock_that_a_fork_could_leave_held(path: Path) -> None:
    """Until Python 3.12 ``cached_property`` has one lock for all objects: a child forked meanwhile waits for ever."""
    assert "cached_property" not in path.read_text("utf-8")
