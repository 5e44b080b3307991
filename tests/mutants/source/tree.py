"""Private copies of the repository in which mutants are built; the checkout is not modified."""
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess

from candidates import ROOT
from cli import Failed


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, **options)
    return done.returncode, done.stdout + done.stderr


def checked(command, **options):
    code, output = run(command, **options)
    if code:
        raise Failed(f"{' '.join(map(str, command))} failed:\n{output[-3000:]}")
    return output


def copy_checkout(to):
    """Copies tracked and new files. Unchanged files keep their time stamps, so that they are not rebuilt."""
    listed = checked(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT).split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for path in list(to.rglob("*")) if to.exists() else []:
        name = path.relative_to(to)
        if name.parts[0] != "build" and path.is_file() and str(name) not in wanted:
            path.unlink()
    for name in wanted:
        source, target = ROOT / name, to / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


class Tree:
    """A copy of the repository and its build, in which at most one line differs from the checkout."""

    def __init__(self, root, flags, *settings):
        self.root, self.build = pathlib.Path(root), pathlib.Path(root) / "build/cpu"
        copy_checkout(self.root)
        self.environment = {**os.environ, "CCACHE_DIR": str(ROOT / "build/mutants/ccache"), "LC_ALL": "C.UTF-8",
                            "ASAN_OPTIONS": "detect_stack_use_after_return=1"}
        checked(["cmake", "--preset", "cpu", "-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_C_FLAGS={flags}",
                 "-DCMAKE_C_COMPILER_LAUNCHER=ccache", *settings], cwd=self.root, env=self.environment)
        checked(["ninja", "-C", self.build], env=self.environment)
        self.objects = self._objects()
        self.clean = {o: self._hash(o) for objects in self.objects.values() for o in objects}
        self.programs = {str(p.relative_to(self.build)) for p in self.build.rglob("*") if p.is_file()
                         and os.access(p, os.X_OK)}
        self.current = set()  # targets that are up to date

    def _objects(self):
        """Returns {file: objects of the program (not of tests) that are compiled from it or include it}."""
        found, name = {}, None
        for line in checked(["ninja", "-C", self.build, "-t", "deps"], env=self.environment).splitlines():
            if line and not line.startswith(" "):
                name = line.split(":")[0]
            elif name and not name.startswith(("tests/", "bench/")):
                path = pathlib.Path(os.path.normpath(self.build / line.strip()))
                if path.is_relative_to(self.root):
                    found.setdefault(str(path.relative_to(self.root)), []).append(name)
        return found

    def _hash(self, name):
        return hashlib.sha256((self.build / name).read_bytes()).hexdigest()

    def tests(self):
        """The tests that CI's ctest runs."""
        listed = json.loads(checked(["ctest", "--show-only=json-v1"], cwd=self.build, env=self.environment))
        return listed["tests"]

    def programs_of(self, words):
        """The ninja targets of the programs in a test's command and environment."""
        return sorted(self.programs & {word.split("=")[-1].removeprefix(f"{self.build}/") for word in words})

    def make(self, targets):
        missing = [t for t in targets if t not in self.current]
        if missing:
            if run(["ninja", "-C", self.build, *missing], env=self.environment)[0]:
                return False
            self.current.update(missing)
        return True

    @contextlib.contextmanager
    def mutated(self, mutant):
        """A context with the mutated line. Yields None if the program builds and its code differs, otherwise the reason
        why the mutant does not count."""
        path = self.root / mutant.file
        original = path.read_text()
        lines = original.splitlines(keepends=True)
        lines[mutant.line - 1] = mutant.new + "\n"
        path.write_text("".join(lines))
        self.current.clear()
        try:
            yield self._difference(self.objects.get(mutant.file, []))
        finally:
            path.write_text(original)
            self.current.clear()

    def _difference(self, objects):
        if not objects:
            return "not in this build"
        if not self.make(objects):
            return "does not build"
        return "equivalent" if all(self._hash(o) == self.clean[o] for o in objects) else None
