"""Every benchmark in turn, each figure beside its baseline; exit 1 when one misses what we ask of ourselves.

make bench
"""

from __future__ import annotations

import sys

from benchmarks import (
    arrays,
    confined,
    documents,
    engine,
    passes,
    prepare,
    prepare_memory,
    tables,
    together,
    tokens,
    training,
    writing,
)


def main() -> int:
    missed = arrays.main() + together.main() + tokens.main() + engine.main() + writing.main()
    missed += documents.main() + passes.main() + confined.main() + training.main()
    missed += prepare.main() + prepare_memory.main()
    tables.main()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
