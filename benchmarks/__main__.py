"""Run every module of this folder that has a `main()` and is not long, in the order of their names.

Arguments go to all of them: `python -m benchmarks --json` prints one JSON line from each.
"""

import importlib
import pkgutil

import benchmarks


def main() -> None:
    for module in sorted(pkgutil.iter_modules(benchmarks.__path__), key=lambda found: found.name):
        # Importing this module again would run it again.
        if module.name == "__main__":
            continue
        found = importlib.import_module(f"benchmarks.{module.name}")
        run = getattr(found, "main", None)
        if run is not None and not getattr(found, "IS_LONG", False):
            run()


if __name__ == "__main__":
    main()
