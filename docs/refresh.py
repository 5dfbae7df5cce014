"""Run the commands quoted in README.md and docs/**/*.md and put their output, and the README's pictures, in."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- example: (?P<command>[^\n]+) -->\n```text\n)(?P<output>.*?)(```\n<!-- end -->)", re.DOTALL)
README = ROOT / "README.md"
# The screen on which quoted commands print.
SCREEN = {"COLUMNS": "120", "NO_COLOR": "1"}
# What a command writes must not land in the checkout.
_OWN = ("reports", "dist")
# Pictures of the how-to pages whose quoted command writes no files: the file, and what draws it.
DRAWN = {
    "comparison.png": "gpustack-mc compare llama-3-70b --vary cluster.accelerator=H100-SXM-80GB,B200-SXM -o reports/x",
    "sites.png": "gpustack-mc sites llama-3-70b-us --regions CA-QC,CA-AB,US-CA,US-NM,US-TX,FR -o reports/x",
    "drivers.png": "gpustack-mc sensitivity scenarios/llama-3-70b.yaml -o reports/x",
    "tornado.png": "gpustack-mc sensitivity scenarios/llama-3-70b.yaml -o reports/x",
    "checkpoints.png": "gpustack-mc run scenarios/llama-3.1-405b-checkpoints.yaml -o reports/x",
}


def pages() -> list[Path]:
    """Return the pages that may quote commands."""
    written = (page for page in sorted((ROOT / "docs").rglob("*.md")) if "generated" not in page.parts)
    return [README, *written]


class Folder:
    """A folder that looks like the checkout, in which the commands of one page run one after the other."""

    def __enter__(self) -> "Folder":
        self.temporary = tempfile.TemporaryDirectory()
        self.path = Path(self.temporary.name)
        # A page that quotes a command twice, or two parts of what it prints, runs it once.
        self.printed: dict[str, str] = {}
        for entry in ROOT.iterdir():
            if not entry.name.startswith(".") and entry.name not in _OWN:
                (self.path / entry.name).symlink_to(entry)
        return self

    def __exit__(self, *error: object) -> None:
        self.temporary.cleanup()

    def output_of(self, command: str) -> str:
        """Run one quoted command and return what it prints.

        `| head -N` and `| tail -N` keep N of its lines, `| grep WORD` those with a word.
        """
        command, _, cut = command.partition(" | ")
        if command not in self.printed:
            self.printed[command] = self.run(command)
        if not cut:
            return self.printed[command]
        lines = self.printed[command].splitlines(keepends=True)
        end, _, what = cut.partition(" ")
        if end == "grep":
            return "".join(line for line in lines if what in line)
        return "".join(lines[: int(what[1:])] if end == "head" else lines[-int(what[1:]) :])

    def run(self, command: str) -> str:
        """Run one command in a process of its own and return what it prints."""
        arguments = [sys.executable, "-m", *shlex.split(command.replace("gpustack-mc", "gpustack_mc", 1))]
        environment = os.environ | SCREEN
        done = subprocess.run(arguments, cwd=self.path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    def pictures(self) -> list[Path]:
        """Return the pictures that the commands have drawn."""
        return sorted(self.path.glob("reports/*/*.png"))


def refresh(page: Path) -> None:
    """Write a page again with the output of its commands, which run in the order of the page."""
    text = page.read_text(encoding="utf-8")
    with Folder() as folder:
        outputs = {block["command"]: folder.output_of(block["command"]) for block in BLOCK.finditer(text)}
        if page == README:
            for picture in folder.pictures():
                (ROOT / "docs" / "images" / picture.name).write_bytes(picture.read_bytes())
    page.write_text(BLOCK.sub(lambda block: block[1] + outputs[block["command"]] + block[4], text), encoding="utf-8")


def draw() -> None:
    """Draw the pictures of the how-to pages again."""
    for name, command in DRAWN.items():
        with Folder() as folder:
            folder.output_of(command)
            (ROOT / "docs" / "images" / name).write_bytes((folder.path / "reports" / "x" / name).read_bytes())


def main() -> None:
    """Refresh all pages and pictures, or the pages that are named."""
    for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        refresh(page)
    if not sys.argv[1:]:
        draw()


if __name__ == "__main__":
    main()
