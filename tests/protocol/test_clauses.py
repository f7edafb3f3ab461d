"""Every clause of `docs/protocol.md` has a test that cites it, and every clause that a test cites is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "protocol.md"
GROUPS = "HFERXBA"
_DEFINED = re.compile(rf"^- \*\*([{GROUPS}]\d+)\*\*", re.MULTILINE)
# R2, and ranges: R1-R3, R1–R3, R1…R3. Not within another word or path, such as `turn_E1` or `/R2`.
_CITED = re.compile(rf"(?<![\w/.-])([{GROUPS}])(\d{{1,2}})(?:\s?[-–…]\s?\1(\d{{1,2}}))?(?![\w/-])")


def cited_in(docstring: str) -> set[str]:
    """The ids that a docstring cites, ranges written out."""
    found = set()
    for group, first, last in _CITED.findall(docstring):
        found |= {f"{group}{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def _docstrings() -> Iterator[tuple[str, str]]:
    """The place and the docstring of each test."""
    for path in sorted(set(TESTS.rglob("test_*.py")) - {Path(__file__)}):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{path.relative_to(TESTS)}::{node.name}", ast.get_docstring(node) or ""


def test_every_clause_has_a_test_and_every_citation_a_clause() -> None:
    """Checked both ways: a clause that nobody tests, and a citation of one that there is not, are named here."""
    defined = set(_DEFINED.findall(PAGE.read_text(encoding="utf-8")))
    assert len(defined) > 35, "the page's clauses are found"
    citations = {place: cited_in(docstring) for place, docstring in _docstrings()}
    cited = set().union(*citations.values())
    assert sorted(defined - cited) == [], "clauses without a test"
    strangers = {place: sorted(ids - defined) for place, ids in citations.items() if ids - defined}
    assert strangers == {}, "citations of what is no clause"


def test_the_clauses_of_each_group_are_numbered_without_gap() -> None:
    """A clause that was lost from the page would be missed by nobody else: H1 to H6, and so on."""
    ids = _DEFINED.findall(PAGE.read_text(encoding="utf-8"))
    for group, last in {"H": 6, "F": 6, "E": 7, "R": 9, "X": 4, "B": 4, "A": 4}.items():
        assert [i for i in ids if i[0] == group] == [f"{group}{number}" for number in range(1, last + 1)]


def test_citations_are_found_in_the_forms_in_which_they_are_written() -> None:
    """Single, in brackets, in lists and as ranges; no part of another word is one."""
    assert cited_in("As (R2) says, and E1, X3; see R5–R7 or B1…B3.") == {
        "R2",
        "E1",
        "X3",
        "R5",
        "R6",
        "R7",
        "B1",
        "B2",
        "B3",
    }
    assert cited_in("turn_R2, /R3, SHA1, UTF-8, A4-paper, U+2028 and H264") == set()
