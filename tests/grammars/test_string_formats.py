from __future__ import annotations

import calendar
import ipaddress
import uuid
from datetime import date, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.grammars.regular import automaton
from specrt.grammars.schema.string_formats import OLD_HOSTNAME, is_asserted, string_format
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

EXAMPLES = {
    "date": (
        ["2024-02-29", "2000-02-29", "2023-12-31", "0001-01-01"],
        [
            "2023-02-29",
            "1900-02-29",
            "2024-04-31",
            "2024-1-01",
            "0000-01-01",
            "2024-13-01",
            "٢024-01-01",
        ],
    ),
    "time": (
        [
            "08:30:06Z",
            "08:30:06z",
            "23:59:59.123456+05:30",
            "00:00:00-23:59",
            "23:59:60Z",
            "00:59:60+01:00",
            "15:59:60-08:00",
            "05:29:60.5+05:30",
        ],
        [
            "24:00:00Z",
            "23:58:60Z",
            "23:59:60+01:00",
            "22:59:60+01:00",
            "08:30:06",
            "08:30Z",
            "08:30:60Z",
            "08:30:06.Z",
            "08:30:06+24:00",
            "8:30:06Z",
        ],
    ),
    "date-time": (
        [
            "2024-02-29T08:30:06Z",
            "1963-06-19T08:30:06.283185+01:00",
            "1963-06-19t08:30:06z",
            "1998-12-31T23:59:60Z",
            "1998-12-31T15:59:60.123-08:00",
            "1999-01-01T05:29:60+05:30",
        ],
        [
            "1998-12-31T05:29:60+05:30",
            "1999-01-01T15:59:60-08:00",
            "1998-12-30T23:59:60Z",
            "2023-02-29T08:30:06Z",
            "2024-02-29 08:30:06Z",
            "2024-02-29T08:30:06",
            "2024-02-29",
        ],
    ),
    "duration": (
        ["P1D", "P4Y", "P1Y2M3DT4H5M6S", "PT36H", "P2W", "PT1H2M", "PT5M30S", "P1Y2M"],
        [
            "P",
            "PT",
            "P1",
            "4D",
            "P1Y2W",
            "P1D2H",
            "PT1D",
            "P2D1Y",
            "P1Y3D",
            "PT1H2S",
            "P1DT",
            "P1.5D",
        ],
    ),
    "email": (
        ["joe.bloggs@example.com", "a+b@c", "x~!@a-b.co.uk", "a" * 64 + "@b.de"],
        [
            ".a@b.c",
            "a.@b.c",
            "a..b@c.d",
            "a@",
            "@b",
            "a b@c.d",
            "a@-b.c",
            "a@b..c",
            "a@b_c",
            "a" * 65 + "@b",
        ],
    ),
    "idn-email": (
        ["실례@실례.테스트", "joe@example.com", '"δ δ"@b.c', "𝕏.é@b.c"],
        ["@b.c", "a@", "é é@b.c", "é.@b.c", "user＠b.c", '"a"b"@b.c', "a@b\u0301.c"],
    ),
    "hostname": (
        [
            "www.example.com",
            "localhost",
            "a-b.c1",
            "1.a",
            "x" * 63 + ".com",
            "a--b",
            "ab-c--d",
            "a.b.c.d.e.f.g.h.i.j",
        ],
        [
            "-a.com",
            "a-.com",
            "a..b",
            ".a",
            "a.",
            "a_b",
            "x" * 64,
            "",
            "xn--X",
            "ab--c",
            "é.com",
            "a b",
        ],
    ),
    OLD_HOSTNAME: (
        ["ab--cd.example", "xn--4gbwdl.xn--wgbh1c", "x" * 63 + ".com", "a", "1-2"],
        ["-a.com", "a-.com", "a..b", "a.", "a_b", "x" * 64, "", "é.com"],
    ),
    "ipv4": (
        ["0.0.0.0", "255.255.255.255", "192.168.1.10"],
        ["256.0.0.1", "01.2.3.4", "1.2.3", "1.2.3.4.5", "1.2.3.4 ", "٢.1.1.1", "1..2.3"],
    ),
    "ipv6": (
        [
            "::",
            "::1",
            "1::",
            "fe80::1:2",
            "1:2:3:4:5:6:7:8",
            "::ffff:1.2.3.4",
            "1:2:3:4:5:6:1.2.3.4",
            "1:2:3:4:5:6:7::",
            "::2:3:4:5:6:7:8",
        ],
        [
            ":",
            "1:2:3:4:5:6:7",
            "1::2::3",
            "12345::",
            "::1.2.3",
            "fe80::1%eth0",
            "1:2:3:4:5:6:7:8:9",
            "1:2:3:4:5:6:7:8::",
            ":1:2:3:4:5:6:7:8",
            "::1:2:3:4:5:6:7:8",
            "1:2:3:4:5:6:7:1.2.3.4",
            "1::2:3:4:5:6:7:8",
        ],
    ),
    "uri": (
        [
            "http://foo.bar/?baz=qux#quux",
            "mailto:a@b.c",
            "urn:oasis:names",
            "file:///etc/x",
            "https://[::1]:80/a%20b",
            "tel:+1-816",
            "http://u:p@h:8080/a;b=c,d",
            "a:",
        ],
        [
            "//foo.bar",
            "/abc",
            "foo",
            "http://a b",
            "http://x/%zz",
            ":// x",
            "http://[1::2::3]/",
            "bar,baz:foo",
            "https://a/<b>",
            "http://ä.de",
            "http://h:port/",
            "http://a\\b",
            'x:"',
        ],
    ),
    "uri-reference": (
        ["", "abc", "/abc?x#y", "//a/b", "../x:y", "#f", "http://a.b"],
        ["\\\\x", "a b", "%1", "a#b#c", "ä"],
    ),
    "iri": (
        ["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "urn:x"],
        ["/abc", "âππ", "http:// x", "http://x\u200b y"],
    ),
    "iri-reference": (["âππ", "//ƒøø.ßår/", "#ƒrägmênt"], ["#ƒräg\\mênt", "a b", "a\ud7ff\x7f"]),
    "uri-template": (
        ["http://x/{id}", "{?q,lang*}", "{/a:3}/b{+c.d}", "", "plain", "{#x}"],
        ["http://x/{id", "}", "{}", "{a b}", "a b", "{a:0}", "<x>", "{=x}"],
    ),
    "uuid": (
        ["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
        [
            "2eb8aa08-aa98-11ea-b4aa-73b441d1638",
            "2eb8aa08aa9811eab4aa73b441d16380",
            "2eb8aa08-aa98-11ea-b4aa-73b441d1638g",
        ],
    ),
    "json-pointer": (["", "/", "/a/b~0c~1d/0", '/ä\n"'], ["a", "/~", "/~2", "#/a"]),
    "relative-json-pointer": (["0", "1/a", "12#", "0/~1"], ["/a", "01/a", "-1", "1##", "", "1a"]),
}


def format_set(name: str) -> StringSet:
    return StringSet(formats=frozenset([name]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    strings = format_set(name)
    valid, invalid = EXAMPLES[name]
    assert [text for text in valid if not strings.contains(text)] == []
    assert [text for text in invalid if strings.contains(text)] == []
    if not name.endswith("json-pointer"):
        assert [text for text in valid if strings.contains(text + "\n")] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_format_is_one_regex_of_a_small_automaton(name):
    required, excluded = format_set(name).spellings()
    assert len(required) == 1 and not excluded
    built = automaton.build(required[0])
    assert built.num_states < 2000
    for text in EXAMPLES[name][0]:
        spelled = text.replace('"', '\\"').replace("\n", "\\n")
        assert built.accepts(spelled.encode()), text


def test_names():
    assert all(
        is_asserted(name) for name in [*EXAMPLES.keys() - {OLD_HOSTNAME}, "regex", "idn-hostname"]
    )
    assert not any(
        is_asserted(name)
        for name in ["int32", "path", "color-hex", "url", "", "Date", OLD_HOSTNAME]
    )
    for name in ["regex", "idn-hostname", "nonsense"]:
        with pytest.raises(UnsupportedError):
            string_format(name)


@given(st.integers(1, 9999), st.integers(1, 12), st.integers(0, 32))
def test_dates_are_those_of_the_calendar(year, month, day):
    text = f"{year:04}-{month:02}-{day:02}"
    exists = 1 <= day <= calendar.monthrange(year, month)[1]
    assert format_set("date").contains(text) == exists


@given(st.datetimes())
def test_every_time_of_python_is_a_date_time(moment: datetime):
    assert format_set("date-time").contains(moment.isoformat() + "Z")
    assert format_set("date").contains(moment.date().isoformat())


@given(st.ip_addresses(v=6) | st.ip_addresses(v=4))
def test_addresses(address):
    names = {4: "ipv4", 6: "ipv6"}
    assert format_set(names[address.version]).contains(str(address))
    assert not format_set(names[10 - address.version]).contains(str(address))
    if address.version == 6:
        assert format_set("ipv6").contains(address.exploded)


@given(st.uuids())
def test_uuids(value: uuid.UUID):
    assert format_set("uuid").contains(str(value))


def reads_date(text: str) -> bool:
    return date.fromisoformat(text).isoformat() == text


def reads_date_time(text: str) -> bool:
    head, _, rest = text.upper().partition("T")
    clock = rest[:8].replace(":60", ":59")  # datetime knows no leap seconds
    return reads_date(head) and datetime.strptime(clock, "%H:%M:%S") is not None


def reads_ipv6(text: str) -> bool:
    return ipaddress.IPv6Address(text) is not None


@pytest.mark.parametrize(
    ("name", "reader"),
    [("date", reads_date), ("date-time", reads_date_time), ("ipv6", reads_ipv6)],
)
def test_what_a_format_generates_is_read_by_others(name, reader):
    [regex] = format_set(name).spellings().required

    @settings(max_examples=100, deadline=None)
    @given(st.from_regex(regex, fullmatch=True))
    def check(text: str) -> None:
        assert reader(text.removesuffix("\n"))

    check()
