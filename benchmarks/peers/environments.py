"""An environment per peer below build/peers, which sees the project's packages and adds its own; data beside them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.peers.ledger import write_tokens
from benchmarks.peers.loader import Peer

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "peers"
DATA = HOME / "data"
WINDOWS = {"large": 1 << 19, "small": 193 * 64}  # 1 GiB, and an epoch that the slowest goes through in seconds


def python_of(peer: type[Peer]) -> Path:
    """The Python of its environment; the project's own where it adds nothing."""
    if not (peer.packages or peer.without_dependencies):
        return Path(sys.executable)
    return HOME / peer.__name__.lower() / "bin" / "python"


def install(peer: type[Peer]) -> str:
    """Make its environment; what went wrong, or nothing."""
    python = python_of(peer)
    done = python.parents[1] / "made"
    if python == Path(sys.executable) or (done.exists() and done.read_text() == _wanted(peer)):
        return ""
    print(f"installing {peer.title} into {python.parents[1].relative_to(ROOT)}", flush=True)
    shutil.rmtree(python.parents[1], ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    beside = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True
    )
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(beside.stdout.strip(), "beside.pth").write_text(line)
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        "constraints.txt",
    ]
    for words in (["--no-deps", *peer.without_dependencies], [*peer.packages]):
        if [word for word in words if not word.startswith("--")]:
            try:
                run = subprocess.run([*pip, *words], cwd=ROOT, capture_output=True, text=True, timeout=900)
            except subprocess.TimeoutExpired:
                return "pip found no answer in 15 minutes"
            if run.returncode:
                errors = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
                return (errors or run.stderr.splitlines() or ["pip failed"])[0][:200]
    done.write_text(_wanted(peer))
    return ""


def _wanted(peer: type[Peer]) -> str:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    names = {name.lower().replace("_", "-") for name in (*peer.packages, *peer.without_dependencies)}
    return "\n".join(pin for pin in pins if pin.partition("==")[0].lower().replace("_", "-") in names)


def variables() -> dict[str, str]:
    here = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "LOWTIDE_BENCH_DIR": str(HOME), "HF_HUB_OFFLINE": "1"}
    quiet = {
        "TOKENIZERS_PARALLELISM": "false",
        "GRPC_VERBOSITY": "ERROR",
        "HF_HOME": str(HOME / "hf"),
        "DISABLE_VERSION_CHECK": "1",
    }
    return {**os.environ, **here, **quiet}


def raw_tokens(size: str) -> Path:
    """The token file, made once."""
    path = DATA / size / "raw" / "tokens.bin"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tokens(path, WINDOWS[size])
    return path


def place_of(peer: type[Peer], size: str) -> Path:
    return DATA / size / peer.source
