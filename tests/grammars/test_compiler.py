from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
from grammar_walks import takes, tiny_vocabulary

from specrt.errors import ConfigError, SchemaError
from specrt.grammars import compiler as compiler_module
from specrt.grammars.base import GrammarRecipe, ToolSpec, Unenforced
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.table_store import TableStore

VOCABULARY = tiny_vocabulary()


@pytest.fixture(scope="module", params=["auto", "llguidance"])
def compiler(request):
    compiler = GrammarCompiler(VOCABULARY, backend=request.param)
    yield compiler
    compiler.close()


def json_recipe(schema, *, strict=False):
    return GrammarRecipe(kind="json", schema=json.dumps(schema), strict=strict, canonical=False)


def tools_recipe(*schemas, strict=False, **options):
    tools = tuple(
        ToolSpec(name=f"f{i}", parameters=json.dumps(schema), strict=strict)
        for i, schema in enumerate(schemas)
    )
    return GrammarRecipe(kind="tools", tools=tools, canonical=False, **options)


def call(arguments, name="f0"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def accepts(grammar, text):
    return takes(grammar.open(), VOCABULARY, text)


def obj(properties, **more):
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


ONE = obj({"a": {"type": "integer"}}, required=["a"])
ARGUMENTS = '{"a": 1}'


@pytest.mark.parametrize(
    ("text", "auto", "required", "single"),
    [
        ("", True, False, True),
        ("Hello.\nThere is <b>no</b> call", True, False, True),
        ("<tool_call", True, False, True),
        ("<too<tool_cal", True, False, True),
        (call(ARGUMENTS), True, True, True),
        ("Hello.\n" + call(ARGUMENTS), True, False, True),
        ("Hello.\n\n" + call(ARGUMENTS), True, False, True),
        ("<tool\n" + call(ARGUMENTS), True, False, True),
        ("<\n" + call(ARGUMENTS), True, False, True),
        (call(ARGUMENTS) + "\n" + call(ARGUMENTS), True, True, False),
        ("Hi\n" + call(ARGUMENTS) + "\n" + call('{"a": -7}'), True, False, False),
        # The trigger anywhere else, separators that are not the format's, text behind a call.
        ("Hello <tool_call>", False, False, False),
        ("<<tool_call>", False, False, False),
        ("Hello" + call(ARGUMENTS), False, False, False),
        ("\n" + call(ARGUMENTS), False, False, False),
        (call(ARGUMENTS) + call(ARGUMENTS), False, False, False),
        (call(ARGUMENTS) + "\n", False, False, False),
        (call(ARGUMENTS) + "\nDone.", False, False, False),
        (call('{"a":1}'), False, False, False),
        (call('{ "a": 1}'), False, False, False),
        (call('{"a": 1, "a": 1}'), False, False, False),
        (call(ARGUMENTS, name="f1"), False, False, False),
        (call(ARGUMENTS)[:-1], False, False, False),
    ],
)
def test_text_and_calls(compiler, text, auto, required, single):
    assert accepts(compiler.compile(tools_recipe(ONE)), text) == auto
    assert accepts(compiler.compile(tools_recipe(ONE, require_call=True)), text) == required
    assert accepts(compiler.compile(tools_recipe(ONE, parallel=False)), text) == single


def test_strings_have_one_spelling(compiler):
    grammar = compiler.compile(tools_recipe(obj({"s": {"type": "string"}}, required=["s"])))
    value = 'quote " back \\ / é 日本 😀 \b\f\n\r\t'
    assert accepts(grammar, call(json.dumps({"s": value}, ensure_ascii=False)))
    for spelled in ("\\u0041", "\\/", "\\u000a", "\\u00e9", "\n", "\x01"):
        assert not accepts(grammar, call(f'{{"s": "{spelled}"}}'))


def test_x_guidance_of_the_schema_is_ignored(compiler):
    loose = {"x-guidance": {"whitespace_flexible": True, "item_separator": " *; *"}}
    grammar = compiler.compile(
        tools_recipe(obj({"a": {"type": "array", "items": True, **loose}}, **loose))
    )
    assert accepts(grammar, call('{"a": [1, 2]}'))
    assert not accepts(grammar, call('{"a": [1; 2]}'))
    assert not accepts(grammar, call('{ "a": [1, 2]}'))


def test_references_stay_within_their_tool(compiler):
    def tool(kind):
        return obj(
            {"x": {"$ref": "#/$defs/t~1%2541"}}, required=["x"], **{"$defs": {"t/%41": kind}}
        )

    grammar = compiler.compile(tools_recipe(tool({"type": "integer"}), tool({"type": "boolean"})))
    assert grammar.unenforced == ()
    assert accepts(grammar, call('{"x": 1}', "f0"))
    assert accepts(grammar, call('{"x": true}', "f1"))
    assert not accepts(grammar, call('{"x": true}', "f0"))
    assert not accepts(grammar, call('{"x": 1}', "f1"))


def test_recursive_references(compiler):
    schema = obj({"v": {"type": "integer"}, "next": {"$ref": "#"}}, required=["v"])
    grammar = compiler.compile(json_recipe(schema, strict=True))
    assert accepts(grammar, '{"v": 1, "next": {"v": 2, "next": {"v": 3}}}')
    assert not accepts(grammar, '{"v": 1, "next": {}}')


@pytest.mark.parametrize(
    "parameters", ["", "null", "{}", "true", '{"type": "object", "properties": {}}']
)
def test_no_parameters_is_an_empty_object(compiler, parameters):
    tool = ToolSpec(name="f0", parameters=parameters, strict=True)
    grammar = compiler.compile(GrammarRecipe(kind="tools", tools=(tool,), canonical=False))
    assert accepts(grammar, call("{}"))
    assert not accepts(grammar, call('{"a": 1}'))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "integer"}}},
        {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}},
        {"anyOf": [{"type": "string"}, {"properties": {"a": {"type": "integer"}}}]},
    ],
)
def test_arguments_are_always_an_object(compiler, schema):
    grammar = compiler.compile(tools_recipe(schema))
    assert accepts(grammar, call(ARGUMENTS))
    assert not accepts(grammar, call('"x"'))
    assert not accepts(grammar, call("null"))
    assert not accepts(grammar, call('{"a": "x"}'))


def test_any_object(compiler):
    grammar = compiler.compile(json_recipe({"type": "object"}))
    assert accepts(grammar, '{"a": [1, {"b": null}], "c": -1.5e-7}')
    assert not accepts(grammar, "[1]")
    assert not accepts(grammar, "")


def test_no_tools_leaves_text(compiler):
    grammar = compiler.compile(tools_recipe())
    assert accepts(grammar, "text")
    assert not accepts(grammar, "<tool_call>")


# What no grammar can enforce, and an instance that is let through.
UNENFORCED = [
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems", "[1, 1]"),
    ({"type": "string", "pattern": "^(a+)\\1$"}, "pattern", '"c"'),
    ({"type": "string", "format": "idn-hostname"}, "format", '"c"'),
    ({"type": "object", "minProperties": 2}, "minProperties", '{"a": 1}'),
]


@pytest.mark.parametrize(("schema", "keyword", "broken"), UNENFORCED)
def test_what_cannot_be_enforced(compiler, schema, keyword, broken):
    """Strict: refused by name. Otherwise: listed, and all else in that tool stays enforced."""
    inner = obj({"n": {"type": "integer"}, "x": schema}, required=["n", "x"])
    pointer = f"/properties/x/{keyword}"
    with pytest.raises(SchemaError) as caught:
        compiler.compile(tools_recipe(ONE, inner, strict=True))
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)
    assert caught.value.param == "tools"
    for part in ("'f1'", repr(keyword), pointer):
        assert part in str(caught.value)
    grammar = compiler.compile(tools_recipe(ONE, inner))
    assert grammar.unenforced == (Unenforced("f1", pointer, keyword),)
    assert accepts(grammar, call(f'{{"n": 1, "x": {broken}}}', "f1"))
    assert not accepts(grammar, call(f'{{"n": "1", "x": {broken}}}', "f1"))
    assert not accepts(grammar, call('{"a": "1"}', "f0"))
    with pytest.raises(SchemaError, match="strict"):
        compiler.compile(json_recipe(schema, strict=True))
    assert compiler.compile(json_recipe(schema)).unenforced == (
        Unenforced("", f"/{keyword}", keyword),
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_references_that_lead_back_to_themselves_mean_nothing(compiler, schema):
    with pytest.raises(SchemaError, match="back to themselves") as caught:
        compiler.compile(json_recipe(schema, strict=True))
    assert caught.value.keyword == "$ref"
    assert [u.keyword for u in compiler.compile(json_recipe(schema)).unenforced] == ["$ref"]


# What engines commonly refuse or ignore: (schema, valid, invalid).
EXACT = [
    ({"type": "integer", "not": {"const": 3}}, "4", "3"),
    ({"type": "string", "pattern": "^(?=a).b$"}, '"ab"', '"cb"'),
    ({"type": "string", "format": "colour"}, '"c"', "1"),  # no format of the specification
    ({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}]}, "4", "6"),
    ({"type": "array", "contains": {"const": 1}, "items": {"enum": [1, 2]}}, "[2, 1]", "[2]"),
    ({"type": "object", "propertyNames": {"maxLength": 1}}, '{"a": 1}', '{"abc": 1}'),
    (
        obj({"a": {"type": "integer"}, "b": {"type": "integer"}}, dependentRequired={"a": ["b"]}),
        '{"a": 1, "b": 2}',
        '{"a": 1}',
    ),
    ({"const": 2**53 + 1}, str(2**53 + 1), str(2**53)),
    ({"const": "\x1f"}, '"\\u001f"', '"\\u001e"'),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), EXACT)
def test_what_is_exact_here(compiler, schema, valid, invalid):
    grammar = compiler.compile(json_recipe(schema, strict=True))
    assert grammar.unenforced == ()
    assert accepts(grammar, valid)
    assert not accepts(grammar, invalid)


def test_provably_disjoint_one_of_is_exact(compiler):
    schema = {
        "oneOf": [
            obj({"kind": {"const": "a"}, "x": {"type": "integer"}}, required=["kind", "x"]),
            obj({"kind": {"const": "b"}, "y": {"type": "boolean"}}, required=["kind", "y"]),
        ]
    }
    grammar = compiler.compile(json_recipe(schema, strict=True))
    assert grammar.unenforced == ()
    assert accepts(grammar, '{"kind": "b", "y": true}')
    assert not accepts(grammar, '{"kind": "b", "x": 1}')


def test_unused_definitions_do_not_count(compiler):
    unused = {"type": "array", "uniqueItems": True}
    schema = obj({"a": {"type": "integer"}}, **{"$defs": {"unused": unused}})
    assert compiler.compile(json_recipe(schema, strict=True)).unenforced == ()


IMPOSSIBLE = [
    {"enum": []},
    False,
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]},
    {"type": "integer", "minimum": 5, "maximum": 1},
    {"type": "integer", "minimum": 1, "maximum": 5, "multipleOf": 7},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "array", "items": False, "minItems": 1},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": "string", "enum": ["abc"], "pattern": "^x"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "required": ["a"],
        "$defs": {"n": False},
    },
]


@pytest.mark.parametrize("schema", IMPOSSIBLE, ids=json.dumps)
@pytest.mark.parametrize("strict", [False, True])
def test_impossible_schemas_end_at_compile(compiler, schema, strict):
    with pytest.raises(SchemaError, match="impossible schema") as caught:
        compiler.compile(json_recipe(schema, strict=strict))
    assert caught.value.param == "response_format"
    wrapped = obj({"x": schema}, required=["x"])
    if "#" not in json.dumps(schema):
        with pytest.raises(SchemaError, match="'f0'.*impossible schema"):
            compiler.compile(tools_recipe(wrapped, strict=strict))


@pytest.mark.parametrize(
    "part", [False, {"enum": []}, {"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/no"}]
)
def test_an_impossible_optional_part_is_left_out(compiler, part):
    loop = {"type": "object", "properties": {"a": {"$ref": "#/$defs/loop"}}, "required": ["a"]}
    schema = obj({"a": {"type": "integer"}, "b": part}, **{"$defs": {"loop": loop, "no": False}})
    grammar = compiler.compile(json_recipe(schema, strict=True))
    assert accepts(grammar, '{"a": 1}')
    assert not accepts(grammar, '{"a": 1, "b": 1}')
    assert not accepts(grammar, '{"b": {"a": 1}}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSON text"),
        ("[" * 100_000, "JSON text"),
        ("5", "expected a JSON Schema"),
        ('{"type": "objekt"}', "not a valid JSON Schema"),
    ],
)
def test_malformed_schemas(compiler, text, message):
    with pytest.raises(SchemaError, match=message):
        compiler.compile(GrammarRecipe(kind="json", schema=text))
    with pytest.raises(SchemaError, match="'f0'"):
        tool = ToolSpec(name="f0", parameters=text)
        compiler.compile(GrammarRecipe(kind="tools", tools=(tool,)))


def test_unknown_format(compiler):
    with pytest.raises(ConfigError, match="nowhere"):
        compiler.compile(replace(json_recipe(True), tool_format="nowhere"))


def test_equal_recipes_compile_once_even_at_once(monkeypatch):
    built, gate = [], threading.Event()

    class Slow(compiler_module.TurnGrammar):
        def __init__(self, *args, **kwargs):
            built.append(threading.get_ident())
            gate.wait(5)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(compiler_module, "TurnGrammar", Slow)
    compiler, results = GrammarCompiler(VOCABULARY), []
    threads = [
        threading.Thread(target=lambda: results.append(compiler.compile(json_recipe(ONE))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len(results) == 6
    assert len({id(grammar) for grammar in results}) == 1
    counters = compiler.counters().grammars
    assert (counters.hits, counters.misses, counters.entries) == (5, 1, 1)


def test_equal_schemas_of_other_recipes_are_made_ready_once():
    compiler = GrammarCompiler(VOCABULARY)
    compiler.compile(tools_recipe(ONE))
    compiler.compile(tools_recipe(ONE, require_call=True))
    compiler.compile(tools_recipe(obj({}), ONE))
    assert compiler.counters().schemas.misses == 2
    assert compiler.counters().grammars.misses == 3


def test_a_failure_reaches_all_who_wait_and_is_not_kept(compiler):
    errors = []

    def run():
        try:
            compiler.compile(json_recipe({"enum": []}))
        except SchemaError as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 4


def test_open_from_many_threads(compiler):
    grammar = compiler.compile(tools_recipe(ONE))
    good = []

    def run():
        good.extend(accepts(grammar, "Hello.\n" + call(ARGUMENTS)) for _ in range(10))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert good == [True] * 40


def test_the_cache_is_bounded():
    small = GrammarCompiler(VOCABULARY, max_bytes=1)
    first = small.compile(json_recipe({"const": 0}))
    assert small.compile(json_recipe({"const": 0})) is not first
    assert small.counters().grammars.bytes == 0


# ---- engines, the worker, the disk ---------------------------------------------------------------

TREE = obj({"next": {"$ref": "#"}})
PATTERN = {"type": "string", "pattern": "^[a-c]{1,3}$"}


@pytest.mark.parametrize(
    ("schemas", "engine"),
    [((ONE,), "outlines"), ((TREE,), "llguidance"), ((ONE, TREE), "outlines+llguidance")],
)
def test_auto_takes_an_automaton_where_one_is_enough(schemas, engine):
    grammar = GrammarCompiler(VOCABULARY).compile(tools_recipe(*schemas))
    assert grammar.engine == engine
    assert accepts(grammar, "Hi\n" + call(ARGUMENTS) if schemas[0] is ONE else call('{"next": {}}'))
    if len(schemas) == 2:
        nested = call('{"next": {"next": {}}}', "f1")
        assert accepts(grammar, f"{call(ARGUMENTS)}\n{nested}\n{call(ARGUMENTS)}")


def test_a_backend_that_was_asked_for_is_used_or_refuses():
    outlines = GrammarCompiler(VOCABULARY, backend="outlines")
    assert outlines.compile(json_recipe(ONE)).engine == "outlines"
    for strict in (False, True):
        with pytest.raises(SchemaError):
            outlines.compile(json_recipe(TREE, strict=strict))
    llguidance = GrammarCompiler(VOCABULARY, backend="llguidance")
    assert llguidance.compile(json_recipe(ONE)).engine == "llguidance"


def test_what_was_made_ready_is_kept_on_disk(tmp_path):
    recipe = json_recipe(PATTERN, strict=True)
    with_store = [GrammarCompiler(VOCABULARY, store=TableStore(tmp_path)) for _ in range(3)]
    assert accepts(with_store[0].compile(recipe), '"abc"')
    (file,) = tmp_path.iterdir()

    class Broken:
        def run(self, *args, **kwargs):
            raise AssertionError("the file was there")

    with_store[1]._worker = Broken()
    grammar = with_store[1].compile(recipe)
    assert accepts(grammar, '"abc"')
    assert not accepts(grammar, '"abd"')
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    grammar = with_store[2].compile(recipe)
    assert accepts(grammar, '"abc"')
    assert not accepts(grammar, '"abd"')
    assert file.read_bytes() != data


def test_what_other_code_made_ready_is_not_taken(tmp_path, monkeypatch):
    recipe = json_recipe(PATTERN, strict=True)
    GrammarCompiler(VOCABULARY, store=TableStore(tmp_path)).compile(recipe)
    GrammarCompiler(VOCABULARY, store=TableStore(tmp_path)).compile(recipe)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(compiler_module, "_maker", lambda: "other code")
    GrammarCompiler(VOCABULARY, store=TableStore(tmp_path)).compile(recipe)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_schema_that_takes_too_long_is_refused_or_loosened():
    hostile = {"type": "string", "pattern": "(a|b)*a(a|b){22}"}
    compiler = GrammarCompiler(VOCABULARY, backend="outlines")
    with pytest.raises(SchemaError):
        compiler.compile(json_recipe(hostile, strict=True))
    assert accepts(compiler.compile(json_recipe(ONE)), ARGUMENTS)  # the worker is back
    compiler.close()


# ---- regexes and Lark ----------------------------------------------------------------------------


def test_a_regex_is_the_whole_output(compiler):
    recipe = GrammarRecipe(kind="regex", schema="(yes|no/maybe)!?", canonical=False)
    grammar = compiler.compile(recipe)
    for text in ("yes", "no/maybe!", "yes!"):
        assert accepts(grammar, text)
    for text in ("", "ye", "yes!!", "no"):
        assert not accepts(grammar, text)


def test_lark_is_run_by_llguidance(compiler):
    lark = 'start: "(" start? ")"'
    grammar = compiler.compile(GrammarRecipe(kind="lark", schema=lark, canonical=False))
    assert grammar.engine == "llguidance"
    assert accepts(grammar, "((()))")
    assert not accepts(grammar, "(()")


@pytest.mark.parametrize(
    ("kind", "text"), [("regex", "("), ("lark", "start: nowhere"), ("lark", "%llguidance {}")]
)
def test_bad_regexes_and_grammars(compiler, kind, text):
    with pytest.raises(SchemaError) as caught:
        compiler.compile(GrammarRecipe(kind=kind, schema=text))
    assert caught.value.param == kind
