"""Prints the modules of the app that have grown large (``make check``). A reminder, never a failure."""

from __future__ import annotations

from tests.house.tree import text, under

LARGE = 250

if __name__ == "__main__":
    sizes = {path: len(text(path).splitlines()) for path in under("app", ".py")}
    large = sorted(((lines, str(path)) for path, lines in sizes.items() if lines > LARGE), reverse=True)
    print(f"app: {len(sizes)} modules, {sum(sizes.values())} lines, {len(large)} over {LARGE}")
    for lines, path in large:
        print(f"  {lines:5} {path}")
