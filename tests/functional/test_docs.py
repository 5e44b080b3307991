"""Runs every command of a page of the documentation, in order, and compares its output with the page. Also checks the
links of the page.

usage: test_docs.py PROGRAM PAGE

The commands run in an empty folder that has the repository's files as links, with `isotron` on the PATH.
A command block is a fenced or indented block that has a line beginning with `$ ` or with a command of the project, or
whose language is a shell. Lines that begin with `$ ` are commands, and the lines after them the output. In the output,
`...` stands for any text, and a line `...` for any lines. A number with a decimal point may differ by 2 %. Comments
change this for the block that follows:
  <!-- numbers differ: REASON -->  numbers may have any value
  <!-- text differs: REASON -->    the output is not compared
  <!-- not run: REASON -->         the block is not run, but the options of isotron in it must exist."""
import os
import re
import shlex
import signal
import threading

from harness import *

COMMANDS = re.compile(r"\$ |(isotron|cmake|ctest|git|pip|python3?|mpirun|export|(build|tools|ci|bench)/\S+)\s")
HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)")
FLOAT, NUMBER = r"[-+]?\d+(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)", r"[-+]?\d[\d.:,]*(?:[eE][-+]?\d+)?"


def blocks(text):
    """Yields (language, lines, preceding comment) of each fenced or indented block."""
    comment, lines = "", iter(text.splitlines() + [""])
    for line in lines:
        fence = re.match(r"\s*(```+|~~~+)\s*(\w*)", line)
        if fence:
            body = []
            for inner in lines:
                if inner.strip().startswith(fence[1]):
                    break
                body.append(inner)
            yield fence[2], body, comment
            comment = ""
        elif line.startswith("    ") and COMMANDS.match(line.strip()):
            body = [line]
            for inner in lines:
                if not inner.startswith("    "):
                    break
                body.append(inner)
            yield "", [inner[4:] for inner in body], comment
            comment = ""
        elif line.strip():
            comment = line.strip() if line.startswith("<!--") else ""


def is_of_commands(language, body):
    prompt = any(line.startswith("$ ") for line in body)
    return prompt or language in ("console", "sh", "bash",
                                  "shell") or (not language and any(COMMANDS.match(line) for line in body))


def commands(body):
    """Returns (command, lines of its output) pairs. A block without a `$ ` is one script; its output is not
    compared."""
    if not any(line.startswith("$ ") for line in body):
        return [("\n".join(body), ["..."])]
    found, lines = [], iter(body)
    for line in lines:
        if line.startswith("$ "):
            words = [line[2:]]
            while words[-1].endswith("\\"):
                words.append(next(lines))
            here = HEREDOC.search(line)
            while here and words[-1] != here[1]:
                words.append(next(lines))
            found.append(("\n".join(words), []))
        else:
            found[-1][1].append(line)
    return found


def pattern(expected, number):
    """Returns a regular expression that matches outputs that agree, with a group for each number."""
    def of_line(line):
        parts = re.split(rf"(\.\.\.|(?<![\w.]){number})", " ".join(line.split()))
        return "".join({0: re.escape(part), 1: ".*?" if part == "..." else f"({number})"}[i % 2]
                       for i, part in enumerate(parts))
    return "".join("(?:.*\n)*?" if line.strip() == "..." else of_line(line) + "\n" for line in expected if line.strip())


def agrees(expected, got, numbers_differ=False):
    number = NUMBER if numbers_differ else FLOAT
    lines = [" ".join(line.split()) for line in got if line.strip()]
    match = re.fullmatch(pattern(expected, number), "".join(f"{line}\n" for line in lines))
    shown = [x for line in expected for x in re.findall(rf"(?<![\w.]){number}", line)]
    return bool(match) and (numbers_differ or all(math.isclose(float(a), float(b), rel_tol=0.02)
                                                  for a, b in zip(shown, match.groups(), strict=True)))


assert agrees(["step 10/ 40  loss 3.00", "...", "x ... z"], ["step 10/  40 loss 3.05", "", "a", "b", "x y z"])
assert not agrees(["loss 3.00"], ["loss 3.10"]) and not agrees(["step 10"], ["step 11"])
assert not agrees(["a"], ["a", "b"])
assert agrees(["3 of 7.5 s"], ["12 of 0.1 s"], True) and not agrees(["3 of 7.5 s"], ["12 of 0.1 ms"], True)


def check_options(body):
    """Checks that the options of the isotron commands in a block that is not run exist."""
    for line in "\n".join(command for command, _ in commands(body)).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        start = next((i for i, word in enumerate(words) if pathlib.PurePath(word).name == "isotron"), None)
        if start is None or (start and words[0] != "mpirun"):
            continue
        words = words[start + 1:]
        first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
        what = words[:2] if words[:1] == ["bench"] else words[:1]
        known = isotron(*what, "--help")
        for word in words[first:]:
            option = word.split("=")[0]
            assert not word.startswith("--") or re.search(rf"(^|\s){option}\b(?!-)",
                                                          known), f"{PAGE}: {' '.join(what)} has no {option}"


def check_links(text):
    slug = lambda title: re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if re.match(r"\w+:", target):
            continue
        path = (PAGE.parent / target) if target else PAGE
        assert path.exists(), f"{PAGE}: the link {target} leads nowhere"
        titles = [slug(t) for t in re.findall(r"^#+ +(.*)", path.read_text(), re.M)] if anchor else []
        assert not anchor or anchor in titles, f"{PAGE}: {path.name} has no heading #{anchor}"


PAGE = (ROOT / OPTIONS.pop()).resolve()  # not an option of the program
text = PAGE.read_text()
check_links(text)
if PAGE == ROOT / "docs/README.md":
    missing = [path for path in sorted(PAGE.parent.rglob("*.md")) if path != PAGE
               and f"({path.relative_to(PAGE.parent)})" not in text]
    assert not missing, f"{PAGE} does not list {missing}"
wanted, not_run = [], []
for language, body, comment in blocks(text):
    if not is_of_commands(language, body):
        continue
    reason = re.match(r"<!-- not run: (.+) -->", comment)
    if reason:
        not_run.append(reason[1])
        check_options(body)
    else:
        text_differs, numbers_differ = (comment.startswith(f"<!-- {what}:") for what in ("text differs",
                                                                                         "numbers differ"))
        wanted += [(command, ["..."] if text_differs else output, numbers_differ) for command, output in commands(body)]

folder = WORK / "clone"
folder.mkdir()
for path in ROOT.iterdir():
    if path.name not in ("build", "work"):
        (folder / path.name).symlink_to(path)
(folder / "build").mkdir()
(folder / "build/cpu").symlink_to(pathlib.Path(PROGRAM).resolve().parent)
MARK = "@@ end of command"
script = "".join(f"{command}\nstatus=$?; echo; echo '{MARK}' $status; [ $status = 0 ] || exit\n"
                 for command, _, _ in wanted)
with subprocess.Popen(["bash", "-c", script], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                      stdin=subprocess.DEVNULL, text=True,
                      env=os.environ | {"PATH": f"{pathlib.Path(PROGRAM).resolve().parent}:{os.environ['PATH']}"},
                      start_new_session=True) as shell:
    # fails on a block that runs too long and is not marked as not run
    too_long = threading.Timer(200, os.killpg, (shell.pid, signal.SIGKILL))
    too_long.start()
    printed = shell.communicate()[0]
    too_long.cancel()
outputs = [*re.split(rf"^{MARK} (\d+)\n", printed, flags=re.M), "none"]  # an output, an exit status, an output, ...
if PAGE == ROOT / "README.md":
    left = {path.name for path in folder.iterdir()} - {path.name for path in ROOT.iterdir()} - {"build", "work"}
    assert not left and "work/\n" in (ROOT / ".gitignore").read_text(), f"{PAGE}: its commands leave {left} in the root"
failed = 0
for (command, expected, numbers_differ), got, status in zip(wanted, outputs[::2], outputs[1::2]):
    got = got.splitlines()
    if status != "0" or not agrees(expected, got, numbers_differ):
        print(f"---- $ {command}\nexit status {status}\n-- the page:", *expected, "-- printed:", *got, sep="\n")
        failed += 1
    if status != "0":
        break
print(f"{PAGE.relative_to(ROOT)}: {len(wanted)} commands run, {failed} not as the page says; {len(not_run)} blocks not "
      f"run" + "".join(f"; {r}" for r in not_run))
sys.exit(bool(failed))
