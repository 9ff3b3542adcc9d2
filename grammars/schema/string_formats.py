"""The formats of JSON Schema, drafts 4 to 2020-12, as regular expressions.

What they accept is valid by the RFC that the specification names, and nearly all that people write;
it is not all that the RFC allows: leap seconds with offsets of whole and half hours alone, quoted
mail addresses where they may be international, no hosts of many long labels, and since draft 7
no labels with two hyphens in third and fourth place (A-labels would have to be decoded).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from specrt.grammars.schema.pattern import Pattern
from specrt.grammars.schema.unsupported import UnsupportedError


@dataclass(frozen=True, slots=True)
class StringFormat:
    """What a format means.

    Attributes:
        patterns: all are found.
        excluded_patterns: none is found.
        max_length: code points; None = no bound.
    """

    patterns: tuple[Pattern, ...]
    excluded_patterns: tuple[Pattern, ...] = ()
    max_length: int | None = None


def is_asserted(name: str) -> bool:
    """Is it a format of the specifications? All other names are annotations."""
    return name in _SOURCES or name in _REFUSED


@cache
def string_format(name: str) -> StringFormat:
    """What a format means.

    Raises:
        UnsupportedError: it cannot be a regular expression, or is not one of the specifications'.
    """
    source = _SOURCES.get(name) or _VARIANTS.get(name)
    if source is None:
        reason = _REFUSED.get(name, "it is unknown")
        raise UnsupportedError(f"format {name!r} is not supported: {reason}")
    return StringFormat((Pattern(f"^(?:{source})$", is_own=True),))


_REFUSED = {
    "idn-hostname": "its rules are not those of a regular expression",
    "regex": "its rules are not those of a regular expression",
}

# RFC 3339. No year 0, which many readers do not know.
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]"
    f"|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]{1,18})?"
_OFFSET = f"(?:[Zz]|[+-]{_CLOCK})"
_PLAIN_TIME = f"{_CLOCK}:[0-5][0-9]{_FRACTION}{_OFFSET}"


def _leap_seconds(sign: str) -> str:
    """23:59:60 UTC on the clocks behind it ("-", on the same day) or before it ("+", the next)."""
    options = []
    for offset in range(30, 24 * 60, 30):
        clock = (23 * 60 + 59 + (offset if sign == "+" else -offset)) % (24 * 60)
        options.append(_seconds_60(clock, rf"(?:\.[0-9]{{1,3}})?\{sign}", offset))
    return "|".join(options)


def _seconds_60(clock: int, between: str, offset: int) -> str:
    """Second 60 of a minute, and an offset, both in minutes."""
    return f"{clock // 60:02}:{clock % 60:02}:60{between}{offset // 60:02}:{offset % 60:02}"


_LEAP_IN_UTC = f"23:59:60{_FRACTION}(?:[Zz]|[+-]00:00)"
_LEAP_SAME_DAY = f"(?:{_LEAP_IN_UTC}|{_leap_seconds('-')})"
_LEAP_NEXT_DAY = f"(?:{_leap_seconds('+')})"
_TIME = f"(?:{_PLAIN_TIME}|{_LEAP_SAME_DAY}|{_LEAP_NEXT_DAY})"
_DATE_TIME = (
    f"(?:{_DATE}[Tt]{_PLAIN_TIME}|{_YEAR}-(?:06-30|12-31)[Tt]{_LEAP_SAME_DAY}"
    f"|{_YEAR}-(?:07-01|01-01)[Tt]{_LEAP_NEXT_DAY})"
)

_COUNT = "[0-9]{1,9}"
_DAYS = f"{_COUNT}D"
_MONTHS = f"{_COUNT}M(?:{_DAYS})?"
_YEARS = f"{_COUNT}Y(?:{_MONTHS})?"
_MINUTES = f"{_COUNT}M(?:{_COUNT}S)?"
_HOURS = f"T(?:{_COUNT}H(?:{_MINUTES})?|{_MINUTES}|{_COUNT}S)"
_DURATION = f"P(?:(?:{_DAYS}|{_MONTHS}|{_YEARS})(?:{_HOURS})?|{_HOURS}|{_COUNT}W)"

# RFC 1123: labels of up to 63 characters, up to 253 in all. Since draft 7 also RFC 5891, 4.2.3.1:
# no hyphens in third and fourth place.
_LETTER = "[A-Za-z0-9]"
_MIDDLE = "[A-Za-z0-9-]"


def _label(length: int) -> str:
    """Labels of up to so many characters, at least 5."""
    long = f"{_MIDDLE}(?:-{_LETTER}|{_LETTER}{_MIDDLE}){_MIDDLE}{{0,{length - 5}}}{_LETTER}"
    return f"{_LETTER}(?:{_MIDDLE}{{0,2}}{_LETTER}|{long})?"


def _old_label(length: int) -> str:
    """The same with hyphens anywhere but at the ends."""
    return f"{_LETTER}(?:{_MIDDLE}{{0,{length - 2}}}{_LETTER})?"


def _host(short: str, label: str) -> str:
    """Names of a few labels, or of more that are short."""
    return (
        rf"(?:(?:{short}\.){{0,2}}{label}(?:\.{label}){{0,2}}"
        rf"|{short}(?:\.{short}){{0,9}})"
    )


_SHORT_LABEL = _label(23)
_LABEL = _label(63)

# RFC 5321: a local part of up to 64 octets.
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = rf"(?:{_ATOM}(?:\.?{_ATOM}){{0,31}}|{_ATOM}{{33,64}})"

# An address has up to 254.
_MAIL_HOST = (
    rf"(?:(?:{_SHORT_LABEL}\.){{0,2}}{_LABEL}(?:\.{_LABEL})?"
    rf"|{_SHORT_LABEL}(?:\.{_SHORT_LABEL}){{0,6}})"
)

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"


def _ipv6() -> str:
    """RFC 4291: eight groups; `::` for one or more; the last two may be an IPv4 address."""
    options = [f"(?:{_GROUP}:){{7}}{_GROUP}", f"(?:{_GROUP}:){{6}}{_IPV4}"]
    for before in range(8):
        head = f"(?:{_GROUP}:){{{before}}}" if before else ":"
        behind = 7 - before
        options.append(f"{head}(?::{_GROUP}){{1,{behind}}}" if behind else f"{head}:")
        if behind:
            options.append(f"{head}:")
        if before < 6:
            options.append(f"{head}(?::{_GROUP}){{0,{5 - before}}}:{_IPV4}")
    return "(?:" + "|".join(options) + ")"


# RFC 3986 and 3987.
_BEYOND_ASCII = (
    r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}"
    r"\u{30000}-\u{3fffd}"
)
_ESCAPED = "%[0-9A-Fa-f]{2}"


def _reference(beyond: str, *, needs_scheme: bool) -> str:
    """A URI, or a reference to one.

    Args:
        beyond: further characters, as in a class.
        needs_scheme: no relative reference?
    """
    plain = rf"A-Za-z0-9._~!$&'()*+,;=\-{beyond}"
    host = rf"(?:\[{_ipv6()}\]|(?:[{plain}]|{_ESCAPED})*)"
    authority = f"//(?:(?:[{plain}:]|{_ESCAPED})*@)?{host}(?::[0-9]{{1,5}})?"
    character = f"(?:[{plain}:@]|{_ESCAPED})"
    more = f"(?:/{character}*)*"
    rooted = f"/(?:{character}+{more})?"
    behind = rf"(?:\?(?:[{plain}:@/?]|{_ESCAPED})*)?(?:#(?:[{plain}:@/?]|{_ESCAPED})*)?"
    absolute = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}{more}|{rooted}|{character}+{more}|)"
    relative = f"{authority}{more}|{rooted}|(?:[{plain}@]|{_ESCAPED})+{more}|"
    return f"(?:{absolute}{'' if needs_scheme else '|' + relative}){behind}"


def _uri_template() -> str:
    """RFC 6570."""
    text = rf"[!#$&(-;=?-\[\]_a-z~{_BEYOND_ASCII}]|{_ESCAPED}"
    letter = f"(?:[A-Za-z0-9_]|{_ESCAPED})"
    variable = rf"{letter}(?:\.?{letter})*(?::[1-9][0-9]{{0,3}}|\*)?"
    return rf"(?:{text}|\{{[+#./;?&]?{variable}(?:,{variable})*\}})*"


_POINTER = "(?:/(?:[^~/]|~[01])*)*"  # RFC 6901

# RFC 6531: a local part of up to 64 octets in UTF-8; labels of letters that RFC 5892 allows
# anywhere, so few that their A-labels are no longer than 63.
_BEYOND_OCTET = "\u0080-\ud7ff\ue000-\U0010ffff"
_IDN_ATOM = _ATOM.replace("[", f"[{_BEYOND_OCTET}")
_IDN_QUOTED = rf"[ !#-\[\]-~{_BEYOND_OCTET}]"
_IDN_LOCAL = rf'(?:{_LOCAL}|{_IDN_ATOM}(?:\.?{_IDN_ATOM}){{0,11}}|"{_IDN_QUOTED}{{1,12}}")'
_IDN_LABEL = (
    r"[a-z0-9\u00e0-\u00f6\u00f8-\u00ff\u03ac-\u03c1\u03c3-\u03ce\u0430-\u045f"
    r"\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3]{1,12}"
)
_IDN_MAIL_HOST = rf"(?:{_MAIL_HOST}|{_IDN_LABEL}(?:\.{_IDN_LABEL}){{0,3}})"

_SOURCES = {
    "date": _DATE,
    "time": _TIME,
    "date-time": _DATE_TIME,
    "duration": _DURATION,
    "email": f"{_LOCAL}@{_MAIL_HOST}",
    "idn-email": f"{_IDN_LOCAL}@{_IDN_MAIL_HOST}",
    "hostname": _host(_SHORT_LABEL, _LABEL),
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uri": _reference("", needs_scheme=True),
    "uri-reference": _reference("", needs_scheme=False),
    "iri": _reference(_BEYOND_ASCII, needs_scheme=True),
    "iri-reference": _reference(_BEYOND_ASCII, needs_scheme=False),
    "uri-template": _uri_template(),
    "uuid": "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]{{0,8}})(?:#|{_POINTER})",
}

# No schema can name them: `hostname` in drafts 4 and 6.
OLD_HOSTNAME = "hostname of RFC 1123"
_VARIANTS = {OLD_HOSTNAME: _host(_old_label(23), _old_label(63))}
