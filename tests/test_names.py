"""Names: no two files and no two classes of one name, and a list of public names in every public module.

One name for one thing lets a reader search for it, and a traceback or a log say which one it was.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import lowtide

SOURCE = Path(lowtide.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Modules that users import. Those that do not exist yet are held to the same rule from their first day.
PUBLIC_MODULES = ("__init__.py", "torch/__init__.py", "dask.py", "ray.py", "xgboost.py", "lightgbm.py", "notebook.py")


def clashes(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_files_have_the_same_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        # A command's file is named after the command, which is often named after what it shows.
        if path.name != "__init__.py" and path.parent != SOURCE / "cli":
            places[path.name].append(str(path.relative_to(SOURCE)))
    assert not clashes(places)


def test_no_two_classes_have_the_same_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not clashes(places)


@pytest.mark.parametrize("name", [name for name in PUBLIC_MODULES if (SOURCE / name).exists()])
def test_every_public_module_lists_its_names(name: str) -> None:
    tree = ast.parse((SOURCE / name).read_text())
    found = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    ]
    assert len(found) == 1, "no __all__"
    listed = ast.literal_eval(found[0])
    assert listed == sorted(set(listed))
    assert not [word for word in listed if word.startswith("_")]
    missing = set(listed) - bound(tree)
    # What is not bound at the top must be given on demand.
    assert not missing or "__getattr__" in bound(tree), f"listed, but not there: {sorted(missing)}"


def bound(tree: ast.Module) -> set[str]:
    """Names that a module's top level binds."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((one.asname or one.name).split(".")[0] for one in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names
