"""Builds the native engine where a C compiler is; everything else about the package is in pyproject.toml.

The extension is optional: without a compiler the install succeeds, the Python twin does everything, and a note beside
it keeps the reason, which ``lowtide`` shows when asked for its engine.
"""

import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/lowtide/engine")
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))  # no limited API there: an extension per version


class Noted(build_ext):
    """Leaves a note where the extension should have been."""

    def build_extension(self, ext: Extension) -> None:
        place = Path(self.get_ext_fullpath(ext.name))
        note = place.with_name("not_built.txt")
        note.unlink(missing_ok=True)
        try:
            super().build_extension(ext)
        except Exception:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(reason(self) + "\n")
            raise


def reason(command: build_ext) -> str:
    """One line: pip shows nothing of an optional extension that failed, so this is all that a user will see."""
    compiler = (getattr(command.compiler, "compiler_so", None) or ["cc"])[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler}) was found at install"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers (Python.h) were not found at install"
    return f"the C compiler ({compiler}) failed at install; pip install --verbose shows what it said"


core = Extension(
    "lowtide.engine._core",
    sources=sorted(str(path) for path in NATIVE.glob("*.c")),
    depends=sorted(str(path) for path in NATIVE.glob("*.h")),
    define_macros=[] if FREE_THREADED else [("Py_LIMITED_API", "0x030B0000")],
    # No -march: one wheel serves every machine of its kind, and measured there is little in it.
    extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=not FREE_THREADED,
    optional=True,
)

setup(
    ext_modules=[core] if sys.platform == "linux" else [],
    cmdclass={"build_ext": Noted},
    exclude_package_data={"lowtide.engine": ["*.c", "*.h"]},  # the source distribution has them
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
