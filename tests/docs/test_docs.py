"""The documents are true: every code block runs or is compared, and every link leads somewhere.

How blocks are written, so that this works, is said in CONTRIBUTING.md under "Documents".
"""

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from process_support import FRAMEWORKS, TORCH, child_environment, warm_python

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

TIMEOUT_S = 240

_FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_MARK = re.compile(r"^<!-- run: ([\w-]+) -->$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FRAMEWORK = re.compile(r"lightning|transformers|mlflow")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, and the run folder it shares with others of its page."""

    page: str
    line: int
    language: str
    text: str
    folder: str

    @property
    def place(self) -> tuple[str, str]:
        """Where the block runs."""
        return self.page, self.folder

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.language}"


@dataclass(frozen=True)
class Ran:
    """What running a block gave.

    Attributes:
        code: the exit code.
        shown: what a reader would see: standard output, or standard error where that is empty.
        steps: of a console block, each command with what the page shows and what there is.
    """

    code: int
    shown: str
    steps: tuple[tuple[str, str, str], ...] = ()


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        marks = _MARK.findall(text, 0, found.start())
        yield Block(
            page=page.relative_to(ROOT).as_posix(),
            line=text.count("\n", 0, found.start()) + 1,
            language=found[1],
            text=found[2],
            folder=marks[-1] if marks else "page",
        )


BLOCKS = [block for page in PAGES for block in blocks(page)]


class Workshop:
    """Runs blocks in the folders they share: those of a folder in order, two folders at a time.

    Args:
        base: where the folders are made.
        wanted: blocks whose folders are run.
    """

    def __init__(self, base: Path, wanted: Iterable[Block]) -> None:
        self._base = base
        pool = ThreadPoolExecutor(max_workers=2)
        places = dict.fromkeys(block.place for block in wanted if block.language != "bash")
        self._folders = {place: pool.submit(self._run_folder, place) for place in places}
        pool.shutdown(wait=False)

    def run(self, block: Block) -> Ran:
        """Return what running `block` has given."""
        return self._folders[block.place].result()[block]

    def output_above(self, block: Block) -> str:
        """Return what the script above `block` has printed."""
        scripts = [b for b in BLOCKS if b.place == block.place and b.language == "python"]
        scripts = [script for script in scripts if script.line < block.line]
        assert scripts, f"{block}: no script above it has printed this"
        return self.run(scripts[-1]).shown

    def _run_folder(self, place: tuple[str, str]) -> dict[Block, Ran]:
        folder = self._base / "_".join(place).replace("/", "_")
        folder.mkdir()
        ran: dict[Block, Ran] = {}
        found = [block for block in BLOCKS if block.place == place]
        framed = any(_FRAMEWORK.search(block.text) for block in found)
        python = warm_python(FRAMEWORKS if framed else TORCH)
        for block in found:
            if block.language == "python":
                (folder / "script.py").write_text(block.text, encoding="utf-8")
                ran[block] = call([python, "script.py"], folder)
            elif block.language == "console":
                ran[block] = console(block, python, folder)
            elif block.language == "sh":
                ran[block] = shell(block.text, folder)
        return ran


def console(block: Block, python: str, folder: Path) -> Ran:
    """Run the lines that start with `$ `; an exit code that is not 0 must be asked for."""
    code, steps = 0, []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        if command == "echo $?":
            found, code = str(code), 0
        else:
            assert code == 0, f"{block}: exit code {code} before `{command}`, and no echo $?"
            program, *arguments = shlex.split(command)
            assert program == "ormas-monitor", f"{block}: the test does not run {program}"
            ran = call([python, "-m", "ormas_core.cli.main", *arguments], folder)
            found, code = ran.shown, ran.code
        steps.append((command, expected, found))
    return Ran(code, "", tuple(steps))


JQ = """#!{python}
import json, sys
found = json.load(open(sys.argv[3]))
match sys.argv[2]:
    case '.subject[] | .digest.sha256 + "  " + .name':
        print(*(s["digest"]["sha256"] + "  " + s["name"] for s in found["subject"]), sep="\\n")
    case ".payload":
        print(found["payload"])
    case ".signatures[0].sig":
        print(found["signatures"][0]["sig"])
    case other:
        sys.exit(f"the stand-in of jq does not know {{other}}")
"""
"""Stands in for jq where it is not installed, for the filters that the pages use."""


def shell(text: str, folder: Path) -> Ran:
    """Run lines of shell, stopping at the first that fails."""
    environment = child_environment()
    if shutil.which("jq") is None:
        stand_in = folder / "bin" / "jq"
        stand_in.parent.mkdir(exist_ok=True)
        stand_in.write_text(JQ.format(python=sys.executable), encoding="utf-8")
        stand_in.chmod(0o755)
        environment["PATH"] = f"{stand_in.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    return Ran(done.returncode, done.stdout + done.stderr)


def call(command: list[str], folder: Path) -> Ran:
    """Run a Python in `folder`, as this tree has it, offline and on the CPU."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    return Ran(done.returncode, done.stdout or done.stderr)


@pytest.fixture(scope="module")
def workshop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """One workshop for the blocks of the tests that were chosen."""
    chosen = {item.name.removeprefix("test_block[")[:-1] for item in request.session.items}
    wanted = [block for block in BLOCKS if str(block) in chosen]
    return Workshop(tmp_path_factory.mktemp("docs"), wanted)


def assert_shown(where: str, expected: str, found: str) -> None:
    """Compare what a page shows with what there is; `...` in the page stands for anything."""
    expected, found = expected.rstrip() + "\n", found.rstrip() + "\n"
    same = doctest.OutputChecker().check_output(expected, found, doctest.ELLIPSIS)
    assert same, f"{where} shows\n{expected}\nand there is\n{found}"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block(block: Block, workshop: Workshop) -> None:
    """Scripts end well, scripts and commands print what is shown, set-up lines can be followed."""
    match block.language:
        case "python":
            ran = workshop.run(block)
            assert ran.code == 0, f"{block} exits with {ran.code}:\n{ran.shown}"
        case "console":
            ran = workshop.run(block)
            for command, expected, found in ran.steps:
                if expected.strip():
                    assert_shown(f"{block}, `{command}`,", expected, found)
            assert ran.code == 0, f"{block} ends with exit code {ran.code}, and no echo $?"
            assert ran.steps, f"{block} has no command"
        case "sh":
            needed = ("openssl", "sha256sum", "base64")
            missing = [tool for tool in needed if shutil.which(tool) is None]
            if missing:
                pytest.skip(f"{block} needs {', '.join(missing)}, which this machine does not have")
            ran = workshop.run(block)
            assert ran.code == 0, f"{block} exits with {ran.code}:\n{ran.shown}"
        case "text" | "json":
            assert_shown(str(block), block.text, workshop.output_above(block))
        case "bash":
            for line in block.text.splitlines():
                check_setup(line)
        case _:
            pytest.fail(f"{block}: no test handles this language")


def check_setup(line: str) -> None:
    """Accept installing with extras that exist, and make targets that exist."""
    program, what, *more = shlex.split(line, comments=True)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert {what, *more} <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE)), line
        return
    assert (program, what, len(more)) == ("pip", "install", 1), f"`{line}` is no known set-up line"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = re.fullmatch(project["name"] + r"(?:\[([\w,]+)\])?", more[0])
    assert found, f"`{line}` installs something else"
    extras = set(found[1].split(",")) if found[1] else set()
    assert extras <= set(project["optional-dependencies"]), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_block_is_hidden(page: Path) -> None:
    """Every fence is one that the tests above see: none is indented, open or made of tildes."""
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)) == 2 * len(list(blocks(page)))


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings have."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    clean = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(text)]
    return {heading.strip().replace(" ", "-") for heading in clean}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Files that are linked to exist, and so do the headings in them."""
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("https:", "http:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_every_page_can_be_reached() -> None:
    """From the README, link by link."""
    found, new = set[Path](), {ROOT / "README.md"}
    while new:
        page = new.pop()
        found.add(page)
        links = _LINK.findall(page.read_text(encoding="utf-8"))
        paths = {(page.parent / link.partition("#")[0]).resolve() for link in links}
        new |= (paths & set(PAGES)) - found
    assert found == set(PAGES)
