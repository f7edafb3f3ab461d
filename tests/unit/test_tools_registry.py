"""Loading tools by the words of the configuration."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from app.errors import ConfigError
from app.tools.registry import load_tools

# Over all tests: a module that was imported once is never read again.
_numbers = itertools.count()

DEFINITIONS = '''
from app.tools import tool

@tool
def zebra(value: str) -> str:
    """First."""
    return value

@tool(name="ant")
def second(value: str) -> str:
    """Second."""
    return value

also_zebra = zebra
'''


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module that can be imported under a name that no other test uses."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_module(text: str) -> str:
        name = f"tools_of_test_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write_module


def test_module_offers_its_tools_in_order_of_definition(write):
    """Every tool of the module, once, although one has two names there."""
    assert list(load_tools([write(DEFINITIONS)])) == ["zebra", "ant"]


def test_module_and_name_offer_one_tool(write):
    """The name is that in the module; the key is the tool's own."""
    assert list(load_tools([f"{write(DEFINITIONS)}:second"])) == ["ant"]


def test_tools_that_a_module_only_imports_are_not_its_own(write):
    """A module that imports another's tool does not offer it; where it has nothing else, the other is named."""
    other = write(DEFINITIONS)
    own = write(f"from app.tools import tool\nfrom {other} import zebra\n@tool\ndef mine() -> str:\n    return ''\n")
    assert list(load_tools([own])) == ["mine"]
    empty = write(f"from {other} import zebra\n")
    with pytest.raises(ConfigError, match=f"'{empty}' defines no tool itself.*{other}"):
        load_tools([empty])
    assert list(load_tools([f"{empty}:zebra"])) == ["zebra"]


def test_two_tools_of_one_name_are_refused(write):
    """Also across modules, naming both."""
    first, second = write(DEFINITIONS), write(DEFINITIONS)
    with pytest.raises(ConfigError, match=f"'zebra' is taken twice, in '{first}' and in '{second}'"):
        load_tools([first, second])


def test_each_mistake_names_the_spec_and_the_reason_in_one_sentence(write):
    """No trace, no second line, no path."""
    broken, wrong_tool = write("1 / 0"), write("from app.tools import tool\n@tool\ndef t(x):\n    return x\n")
    leaves, fine = write("raise SystemExit('bye')"), write(DEFINITIONS)
    for spec, reason in [
        ("no_such_module_at_all", "ModuleNotFoundError"),
        (broken, "ZeroDivisionError: division by zero"),
        (wrong_tool, "tool 't': parameter 'x' has no type hint"),
        (leaves, "SystemExit: bye"),
        (write("x = 1"), "has no tools"),
        (f"{fine}:nothing", "has no 'nothing'"),
        (f"{fine}:tool", "'tool' is no tool"),
        (f"{fine}:", "neither a module nor"),
        ("", "neither a module nor"),
        (".relative", "cannot be imported"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load_tools([spec])
        assert f"'{spec}'" in caught.value.message
        assert reason in caught.value.message
        assert "\n" not in caught.value.message
        assert "Traceback" not in caught.value.message
