"""A sample of the hostile inputs of benchmarks/fuzz.py: refused in one line or answered, nothing else."""

import sys

import pytest


@pytest.fixture(scope="module")
def fuzz(root):
    sys.path.insert(0, str(root / "benchmarks"))
    try:
        import fuzz

        return fuzz
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize(
    ("kind", "count"), [("scenario", 60), ("line", 40), ("table", 100), ("sweep", 60), ("journal", 60)]
)
def test_only_answers_and_errors_of_one_line(fuzz, tmp_path, kind, count):
    make, use = fuzz.KINDS[kind][0](tmp_path)
    found = [fuzz.attempt(make, use, fuzz.generator(kind, 9, number)) for number in range(count)]
    assert [finding for _, finding in found if finding] == []
    # The sample is worth something: some inputs are still sound, and the others are refused for several reasons.
    answers = {answer for answer, _ in found}
    assert "answered" in answers and (len(answers) >= 4 or kind == "journal")


def test_an_error_that_is_not_ours_is_a_finding(fuzz):
    def broken(subject):
        raise ValueError("not for users")

    assert fuzz.attempt(lambda random: None, broken, None) == ("exception", "ValueError: not for users")


def test_an_error_without_a_line_is_a_finding(fuzz):
    from gpustack_mc.errors import InputError, Place

    assert fuzz.unclear(InputError("bad-value", "x is wrong.", "", Place("plan.yaml", 3))) == ""
    assert "no line" in fuzz.unclear(InputError("bad-value", "x is wrong.", "", Place("plan.yaml")))
    assert "no file" in fuzz.unclear(InputError("bad-value", "x is wrong."))


@pytest.mark.parametrize(
    ("markup", "said"),
    [
        ("<p onclick=x>", "a handler onclick"),
        ("<img src=x onerror=alert(1)>", "a img"),
        ('<a href="javascript:alert(1)">', "a link to javascript:alert(1)"),
        ("<iframe src=//x>", "a iframe"),
        ("<script>alert(1)</script>", "a foreign script"),
        ("&lt;script&gt;alert(1)&lt;/script&gt;", ""),
    ],
)
def test_markup_of_a_file_in_a_page_is_a_finding(fuzz, tmp_path, markup, said):
    page = tmp_path / "page.html"
    page.write_text(f"<body>{markup}</body>", encoding="utf-8")
    found = fuzz.hostile.page_findings(page)
    assert found == (f"page.html holds {said}" if said else "")


@pytest.mark.parametrize(
    ("code", "out", "err", "said"),
    [
        (0, "done", "", ""),
        (2, "", "plan.yaml:3: wrong.\n", ""),
        (4, "", "", "exit code 4"),
        (None, "", "", "exit code None"),
        (2, "", "", "without a word"),
        (1, "", "something is wrong.", "exit code 1: something"),
        (1, "", "out: cannot write: no space.", ""),
        (2, "", "Traceback (most recent call last):\nx", "a traceback"),
        (0, "", "", "nothing printed"),
    ],
)
def test_what_an_answer_to_a_command_must_be(fuzz, code, out, err, said):
    found = fuzz.hostile_commands.judged(["run", "plan.yaml"], out, err, code)
    assert said in found and bool(said) == bool(found)
