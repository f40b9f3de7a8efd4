"""Flag words and patterns that the project's texts avoid: ``python -m tools.check_words``.

It reads the Markdown pages without their code, and every sentence of the source
(``tools.sentences``). Each finding is printed with its line and the remedy; the exit code is 1 if
there is any.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.sentences import ROOT, sentences, source_files

#: Pattern -> what to write instead.
PATTERNS = {
    r"\bwho(?:ever)? (?:lived|lives|may|asks?|works?|wants?|comes)\b": "individuals, workers",
    r"\bwhoever\b|\bwhomever\b": "anyone who",
    r"\bcom(?:es|e|ing) along\b": "bundled",
    r"\b(?:numpy|numbers|settings|seed|user|host|names?|folders?|reading|training|fitness|one)"
    r" alone\b": "only, before the noun",
    r"\b(?:go|goes|going|gone|went) on (?:with|by)\b|\bgoes on\b": "continues, resumes",
    r"\bstands? (?:in|beside|there|here|above|below|twice)\b": "is, appears",
    r"\b(?:is|are) no (?:class|queue|regular|readable)\b": "is not a",
    r"\b(?:lines?|slots?|episodes?|individuals?|objects?|rows?|cores?|jobs?) an? "
    r"(?:line|generation|block|pair|host|core|second|run|key|slot|field|worker)\b": "per",
    r"\b(?:aloud|befell|befalls|mend(?:s|ed)?|anew|hitherto|thereof|whence|thus far)\b": (
        "a current word: fix, again, reported"
    ),
    r"\bbut for\b": "except for",
    r", for (?:it|they|he|she|there|the|its|his|this|a|an|no|we|you|what) "
    r"(?:\w+ )?(?:is|are|has|have|was|were|can|may|does|do|holds?|ends?|needs?)\b": "because",
    r"\bof one's own\b|\bof ours\b": "your own, es-queue's",
    r"\b(?:is|are|was|were|be) (?:due|wanted)\b|\bas asked for\b": "required, expected",
    r"\bnobody (?:could|can|works?|drives?|may|was|is|asked)\b": "name the worker or process",
    r"\bwarned of\b|\bsaid of\b|\btold of\b": "warn about",
    r"\b(?:in|with) pictures\b|\bpictures? (?:of|made|from)\b": "image, frame or figure",
    r"\bsome thousand\b|\bsome tens?\b": "about, thousands",
    r"\bhas (?:no|not) use for\b|\bof no use\b": "does not use",
    r"\b(?:say|says|said|tells?|told|hears?|heard) (?:so|by|in|to be)\b": "is shown, is reported",
    r"\btheta\b(?! ±)": "parameters",
    r"\bcandidates\b(?= (?:that|who|were|are))": "individuals",
}
COMPILED = [(re.compile(pattern, re.IGNORECASE), remedy) for pattern, remedy in PATTERNS.items()]
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
#: Links to tests, whose texts are the tests' names.
TEST_NAMES = re.compile(r"\[[^\]]*\]\([^)]*test_\w+\.py\)")
CODE = re.compile(r"``?[^`\n]*``?")
LONGEST_SENTENCE = 45  # words


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    found: str
    remedy: str


def check_text(path: str, line: int, text: str) -> Iterator[Finding]:
    """Findings in a text that begins at a line of a file."""
    for pattern, remedy in COMPILED:
        for match in pattern.finditer(text):
            yield Finding(path, line + text[: match.start()].count("\n"), match[0], remedy)


def check_page(path: Path) -> Iterator[Finding]:
    """Findings in a Markdown page; code is left out."""
    text = TEST_NAMES.sub("", path.read_text("utf-8"))
    text = FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
    text = CODE.sub("`", text)
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    yield from check_text(name, 1, text)
    yield from long_sentences(name, text)


def long_sentences(name: str, text: str) -> Iterator[Finding]:
    """Sentences of paragraphs and list items; tables are left out."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("|", "#", "<", "!")):
            continue
        for sentence in re.split(r"(?<=[.:!?]) ", line):
            if len(sentence.split()) > LONGEST_SENTENCE:
                begin = " ".join(sentence.split()[:6])
                yield Finding(name, number, f"{begin} …", f"at most {LONGEST_SENTENCE} words")


def check_source(path: Path) -> Iterator[Finding]:
    """Findings in the sentences of a source file."""
    for sentence in sentences(path):
        yield from check_text(sentence.path, sentence.line, sentence.text)


def markdown_pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def show(findings: Iterable[Finding]) -> int:
    """Print the findings; returns their number."""
    shown = [f"{one.path}:{one.line}: {one.found!r}: {one.remedy}" for one in findings]
    print(*shown, sep="\n", end="\n" * bool(shown))
    return len(shown)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tools.check_words", description=__doc__)
    parser.add_argument(
        "--only", choices=("pages", "source"), help="check only one of them [default: both]"
    )
    only = parser.parse_args().only
    pages = () if only == "source" else markdown_pages()
    sources = () if only == "pages" else source_files()
    count = show(finding for page in pages for finding in check_page(page))
    count += show(finding for path in sources for finding in check_source(path))
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
