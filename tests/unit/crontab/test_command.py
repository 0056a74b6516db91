"""Which commands of a crontab need no shell, and what becomes of them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.crontab.command import shell_free, split_percent


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("/usr/bin/certbot renew --quiet", ("/usr/bin/certbot", "renew", "--quiet")),
        ("backup\t--all   /srv", ("backup", "--all", "/srv")),
        ("mail -s 'it is 10pm' joe", ("mail", "-s", "it is 10pm", "joe")),
        ('echo "a \\"b\\" \\$HOME $ 5$"', ("echo", 'a "b" $HOME $ 5$')),
        ("echo a\\ b '' \"\"", ("echo", "a b", "", "")),
        ("find /tmp -name '*.tmp' ! -newer /x -exec rm {} \\;",
         ("find", "/tmp", "-name", "*.tmp", "!", "-newer", "/x", "-exec", "rm", "{}", ";")),
        ("rsync -a host:/srv/ /mnt/x~ a#b", ("rsync", "-a", "host:/srv/", "/mnt/x~", "a#b")),
        ("grep ^root$ /etc/passwd", ("grep", "^root$", "/etc/passwd")),
        ("/bin/sh -c 'a | b > c'", ("/bin/sh", "-c", "a | b > c")),
    ],
)  # fmt: skip
def test_words_and_quotes_are_read_as_a_shell_does(command: str, argv: tuple[str, ...]) -> None:
    assert shell_free(command).argv == argv


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("a | b", "pipe"),
        ("a && b", "&&"),
        ("a; b", "list of commands"),
        ("a > /var/log/a.log", "redirect"),
        ("a >> /var/log/a.log 2>&1", "redirect"),
        ("a < /etc/x", "redirect"),
        ("a $HOME", "variable"),
        ('a "${HOME}"', "variable"),
        ('a "\\\\$HOME"', "variable"),
        ("a $(date)", "variable or substitution"),
        ("a `date`", "command substitution"),
        ('a "`date`"', "substitution"),
        ("rm /tmp/*.tmp", "pattern"),
        ("ls a?", "quote it"),
        ("ls [ab]", "pattern"),
        ("[ -x /bin/a ] && /bin/a", "pattern"),
        ("ls ~/x", "home"),
        ("ls --dir=~/x", "home"),
        ("cp {a,b} /x", "braces"),
        ("cd /srv", "cd, a word of the shell"),
        ("! /bin/a", "word of the shell"),
        ("(a)", "subshell"),
        ("a\\ 2>/dev/null", "redirect"),
    ],
)
def test_what_needs_a_shell_is_refused_with_the_remedy(command: str, what: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        shell_free(command)
    assert caught.value.field == "command"
    assert what in caught.value.problem
    assert "without one" in caught.value.problem


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo 'a", "' is not closed"),
        ('echo "a', '" is not closed'),
        ("echo \\", "\\ is not closed"),
        ("bin/run.sh", "absolute path"),
        ("./run.sh", "absolute path"),
        ("-n /bin/a", "no program"),
        ("'' a", "no program"),
        ("A=1", "missing"),
        ("# nothing", "missing"),
        (">/dev/null", "missing"),
        ("a\x0bb", "separates nothing"),
    ],
)
def test_what_is_no_program_is_refused(command: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=r"^command: ") as caught:
        shell_free(command)
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    "quiet", [">/dev/null 2>&1", "> /dev/null", "2>/dev/null", "&>/dev/null", "</dev/null", "2>&1"]
)
def test_output_that_goes_nowhere_needs_no_shell(quiet: str) -> None:
    parsed = shell_free(f"/bin/a x {quiet}")
    assert (parsed.argv, parsed.quiet) == (("/bin/a", "x"), True)
    assert shell_free(f"/bin/a '{quiet}'").argv == ("/bin/a", quiet)


def test_variables_in_front_are_an_environment_and_only_there() -> None:
    parsed = shell_free("A=1 B='x y' /bin/a C=3")
    assert (parsed.argv, parsed.env) == (("/bin/a", "C=3"), (("A", "1"), ("B", "x y")))
    assert shell_free("'A'=1 x").argv == ("A=1", "x")


def test_a_comment_behind_a_command_is_none_of_it() -> None:
    parsed = shell_free("/bin/a b # nightly; | $x")
    assert (parsed.argv, parsed.comment) == (("/bin/a", "b"), True)


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("a b", ("a b", None)),
        ("date +\\%F", ("date +%F", None)),
        ("mail joe%Joe,%%where?%", ("mail joe", "Joe,\n\nwhere?\n")),
        ("mail joe%Joe", ("mail joe", "Joe\n")),
        ("mail joe%%", ("mail joe", "\n")),
        ("mail joe%", ("mail joe", None)),
        ("mail joe%100\\% sure", ("mail joe", "100% sure\n")),
        ("a \\\\%b", ("a \\\\", "b\n")),
        ("a \\", ("a \\", None)),
    ],
)
def test_a_percent_is_that_of_crontab_5(command: str, parts: tuple[str, str | None]) -> None:
    assert split_percent(command) == parts


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20), min_size=1
    )
)
def test_what_shlex_quotes_is_read_back(words: list[str]) -> None:
    argv = ("/bin/a", *words)
    assert shell_free(shlex.join(argv)).argv == argv


@given(st.text(max_size=60))
def test_any_text_is_a_command_or_invalid_input(text: str) -> None:
    try:
        parsed = shell_free(split_percent(text)[0])
    except InvalidInput as error:
        assert error.field == "command"  # noqa: PT017 - either way is right
    else:
        assert parsed.argv[0]
