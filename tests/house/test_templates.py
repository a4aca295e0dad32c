"""The templates and the page's own files keep the promises that the content security policy makes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jinja2
import msgspec
import pytest
from jinja2 import nodes

from app.web import views, words
from tests.house.tree import ROOT, files, text, under

TEMPLATES = under("templates", ".html", ".svg")
PAGE_FILES = tuple(path for path in under("static", ".css", ".js") if "vendor" not in path.parts)
TAG = re.compile(r"<([a-zA-Z][\w-]*)((?:[^>\"']|\"[^\"]*\"|'[^']*')*)>")
ATTRIBUTE = re.compile(r"([^\s=\"'{}%/]+)\s*=\s*(\"[^\"]*\"|'[^']*')")

JINJAS_OWN = {"index", "index0", "first", "last", "length", "items", "cycle"}
PROBLEM = {"field", "reason", "remedy"}  # of app.errors.SpecraceError


def tags(path: Path) -> list[tuple[str, dict[str, str]]]:
    """The tags of a template with their attributes; comments and Jinja statements inside a tag are passed over."""
    source = re.sub(r"\{#.*?#\}|<!--.*?-->", "", text(path), flags=re.DOTALL)
    found: list[tuple[str, dict[str, str]]] = []
    for name, rest in TAG.findall(source):
        bare = re.sub(r"\{%.*?%\}", " ", rest, flags=re.DOTALL)
        found.append((name.lower(), {key.lower(): value[1:-1] for key, value in ATTRIBUTE.findall(bare)}))
    return found


@pytest.mark.parametrize("path", TEMPLATES, ids=str)
def test_templates_parse(path: Path) -> None:
    jinja2.Environment(autoescape=True).parse(text(path))


@pytest.mark.parametrize("path", TEMPLATES, ids=str)
def test_templates_read_only_what_views_have(path: Path) -> None:
    """Every attribute that a template reads is a field, property or method of some struct made for templates."""
    given = [*vars(views).values(), *vars(words).values()]
    structs = [value for value in given if isinstance(value, type) and issubclass(value, msgspec.Struct)]
    known = {name for struct in structs for name in dir(struct) if not name.startswith("_")} | JINJAS_OWN | PROBLEM
    tree = jinja2.Environment(autoescape=True).parse(text(path))
    read = {node.attr for node in tree.find_all(nodes.Getattr) if not _is_import(node, tree)}
    assert read - known == set()


def _is_import(node: nodes.Getattr, tree: nodes.Template) -> bool:
    """Whether the attribute is a macro of another template: ``{% import "x" as x %}{{ x.macro() }}``."""
    imported = {found.target for found in tree.find_all(nodes.Import)}
    return isinstance(node.node, nodes.Name) and node.node.name in imported


@pytest.mark.parametrize("path", TEMPLATES, ids=str)
def test_no_inline_code_or_style(path: Path) -> None:
    for name, attributes in tags(path):
        assert name != "style", "styles live in static/app.css"
        assert name != "script" or "src" in attributes or attributes.get("type") == "application/json"
        inline = [key for key in attributes if key == "style" or re.match(r"on[a-z]|hx-on|@", key)]
        assert inline == [], f"<{name}>"
        assert not any(
            "javascript:" in value.lower() or value.lower().startswith("js:") for value in attributes.values()
        )


@pytest.mark.parametrize("path", TEMPLATES, ids=str)
def test_no_other_host(path: Path) -> None:
    """Links that a person follows may lead elsewhere; nothing that the page loads by itself."""
    for name, attributes in tags(path):
        if name == "a":
            continue
        foreign = {key: value for key, value in attributes.items() if re.match(r"\s*(https?:|wss?:)?//", value)}
        foreign = {key: value for key, value in foreign.items() if not key.startswith("xmlns")}
        assert foreign == {}, f"<{name}>"


@pytest.mark.parametrize("path", TEMPLATES, ids=str)
def test_nothing_is_marked_safe(path: Path) -> None:
    assert not re.search(r"\|\s*safe\b|autoescape\s+false", text(path)), "model text must never be HTML"


@pytest.mark.parametrize("path", PAGE_FILES, ids=str)
def test_the_pages_own_files_load_nothing_and_make_no_html(path: Path) -> None:
    source = text(path)
    assert not re.search(r"url\(\s*[\"']?(https?:)?//|@import", source)
    assert not re.search(r"\beval\(|new Function\(|\.(inner|outer)HTML\s*=|insertAdjacentHTML|document\.write", source)
    assert not re.search(r"[\"'`](https?:)?//[a-z]", source)


def test_static_files_that_templates_name_exist() -> None:
    named = {match for path in TEMPLATES for match in re.findall(r"/static/([\w./-]+\.\w+)", text(path))}
    assert {name for name in named if not (ROOT / "static" / name).is_file()} == set()


def policies() -> list[str]:
    """Every content security policy written anywhere in the app or in what deploys it."""
    found: list[str] = []
    for path in under("app", ".py"):
        nodes = ast.walk(ast.parse(text(path)))
        strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        found += [value for value in strings if re.search(r"\b(default|script|style|connect|img)-src\b", value)]
    for path in files():
        if path.parts[0] == "deploy":
            found += [line for line in text(path).splitlines() if "-src " in line]
    return found


@pytest.mark.parametrize("policy", policies())
def test_no_wildcard_in_a_policy(policy: str) -> None:
    for hole in ("*", "'unsafe-inline'", "'unsafe-eval'", "https:", "http:"):
        assert hole not in policy


def test_there_is_a_policy() -> None:
    assert policies()
