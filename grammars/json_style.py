"""JSON text in one style: separators, string spellings; numbers keep their own spelling."""

from __future__ import annotations

import json
import re

# Outside strings only white space and the two separators ever change.
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+|([,:])')
_SURROGATE = re.compile("[\ud800-\udfff]")


def restyle(text: str, *, item_separator: str, key_separator: str) -> str:
    r"""Rewrite JSON text in the style that a tool-call format states.

    White space outside strings goes, separators become the given ones, strings are spelled as
    `json.dumps(ensure_ascii=False)` spells them (a lone surrogate keeps its escape). Key order,
    duplicate keys and the spelling of numbers stay. Text in the style comes back unchanged.

    Args:
        text: valid JSON.
        item_separator: written between items, as ", ".
        key_separator: written between a key and its value, as ": ".
    """

    def rewrite(match: re.Match[str]) -> str:
        string, separator = match.groups()
        if string is not None:
            return _spell(string) if "\\" in string else string
        if separator is not None:
            return item_separator if separator == "," else key_separator
        return ""

    return _TOKEN.sub(rewrite, text)


def _spell(string: str) -> str:
    spelled = json.dumps(json.loads(string), ensure_ascii=False)
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", spelled)


def repair_surrogates(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates by U+FFFD, so that UTF-8 can hold the text.

    Clients that cut text by UTF-16 units send lone surrogates.
    """
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
