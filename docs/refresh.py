"""Run the commands quoted in the README and put their output and pictures in."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- example: (?P<command>[^\n]+) -->\n```text\n)(?P<output>.*?)(```\n<!-- end -->)", re.DOTALL)
WIDTH = 120


def output_of(command: str, *, pictures: bool = True) -> str:
    """Run one quoted command in an empty folder of its own, keep its pictures, and return what it prints."""
    environment = {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    arguments = [sys.executable, "-m", *shlex.split(command.replace("gpustack-mc", "gpustack_mc", 1))]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("scenarios", "docs"):
            (Path(folder) / name).symlink_to(ROOT / name)
        done = subprocess.run(
            arguments, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=True
        )
        for picture in Path(folder).glob("reports/*/*.png") if pictures else ():
            (ROOT / "docs" / "images" / picture.name).write_bytes(picture.read_bytes())
    return done.stdout


def refresh(text: str) -> str:
    """Return a page with the output of its commands."""
    return BLOCK.sub(lambda found: found[1] + output_of(found["command"]) + found[4], text)


def main() -> None:
    """Refresh the README."""
    page = ROOT / "README.md"
    page.write_text(refresh(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
