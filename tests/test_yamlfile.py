"""YAML 1.2 rules, places, and refusal of what is not a small plain document."""

import time

import pytest

from gpustack_mc.errors import InputError
from gpustack_mc.yamlfile import MAX_BYTES, parse, read_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7e9", 7e9), ("1.5e13", 1.5e13), ("2e-1", 0.2), (".5", 0.5), ("1_000", 1000), ("010", 10), ("0x10", 16),
        ("0o17", 15), ("NO", "NO"), ("yes", "yes"), ("1:30", "1:30"), ("'7'", "7"), ("true", True), ("~", None),
        ("2026-11-30", "2026-11-30"), ("-3", -3), ("+.5", 0.5), (".inf", float("inf")), ("1e400", float("inf")),
        ("0.08 USD/kWh", "0.08 USD/kWh"), ("H100", "H100"), ("!!float 3", 3),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text, value):
    got = parse(f"a: {text}\n", "x.yaml").data["a"]
    assert got == value and type(got) is type(value)


def test_places_of_keys_and_values():
    document = parse("a: 1\nb:\n  c: [10, 20]\n  dé: x\n", "x.yaml")
    assert str(document.place(("b", "c", 1))) == "x.yaml:3:11"
    assert str(document.place(("b", "dé"), key=True)) == "x.yaml:4:3"
    # What is absent is placed at its nearest parent.
    assert str(document.place(("b", "nothing", "here"))) == "x.yaml:3:3"


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{x}: &{x} [{','.join([f'*{y}'] * 10)}]\n" for x, y in zip("bcdefgh", "abcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a:\n\tb: 1\n", "x.yaml:2:1", "a tab is used for indentation"),
        ("a: 1\na: 2\n", "x.yaml:2:1", "a appears twice (first on line 1)"),
        ("a: !!python/object/apply:os.system [ls]\n", "x.yaml:1:4", "the tag tag:yaml.org,2002:python"),
        ("a: !foo 1\n", "x.yaml:1:4", "the tag !foo is not allowed"),
        ("a: !!binary aGk=\n", "x.yaml:1:4", "the tag tag:yaml.org,2002:binary"),
        ("a: &a {b: 1}\nc: {<<: *a}\n", "x.yaml:2:5", "merge keys (<<)"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2:1", "more than one document"),
        ("a: *x\n", "x.yaml:1:4", "undefined alias 'x'"),
        ("a: [1,\nb: 2\n", "x.yaml:3:1", "not valid YAML"),
        ("a: b: c\n", "x.yaml:1:5", "mapping values are not allowed here"),
        ("1: 2\n", "x.yaml:1:1", "a key must be a word"),
        ("? [a]\n: 2\n", "x.yaml:1:3", "a key must be a word"),
        ("a: " + "[" * 5000 + "]" * 5000, "x.yaml:1:27", "nested more than 24 levels"),
        ("a: &a [*a]\n", "x.yaml:1:4", "more than 20,000 values"),
        (BOMB, "x.yaml:1:", "more than 20,000 values"),
        ("# nothing\n", "x.yaml", "holds only comments"),
        ("a: \x01\n", "x.yaml:1:4", "the character U+0001 is not allowed"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_refused(text, place, message):
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        parse(text, "x.yaml")
    assert str(caught.value).startswith(place)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    # A bomb must be refused while it is counted, not after it was expanded.
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"), (b"  \n", "the file is empty"), (b"a: \xff\n", "is not UTF-8 text"),
        (b"a\x00b", "binary file"), (b"\x89PNG\r\n\x1a\n", "is not UTF-8 text"),
        (b"#" * (MAX_BYTES + 1), "larger than 250 kB"),
    ],
)  # fmt: skip
def test_unreadable_content(tmp_path, content, message):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_text(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        read_text(tmp_path / "none.yaml")
    (tmp_path / "plan.yaml").write_text("a: 1")
    with pytest.raises(InputError, match=r"this is a folder.*plan\.yaml"):
        read_text(tmp_path)
    with pytest.raises(InputError, match="cannot read it"):
        read_text("a\0b")


def test_byte_order_mark_is_not_content(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert parse(*read_text(path)).data == {"a": 1}
