"""Computes crash states: the files that may remain if the power fails while a program writes. Standard library only.

The model of the file system is the weakest that POSIX allows, as in ALICE and CrashMonkey. The content of a file is
durable after fsync of the file. A creation, renaming or removal is durable after fsync of the folder. A rename
replaces a name atomically. Any subset of all other effects may be on the disk, in any order. For example, there may be
a name without its content, or a later write without an earlier one. A write may be torn at a sector, or leave zeros."""
import itertools
import pathlib
import random

SECTOR = 512
MOST_EXHAUSTIVE = 5  # pending effects; with more of them, subsets are sampled


def read_record(path):
    """Parses the trace of recorder.c. Returns a list [name, arguments...] for each call; the last argument of a write
    is its bytes. An entry "ended" means that a run has ended."""
    data, at, calls = path.read_bytes(), 0, []
    while at < len(data):
        end = data.index(b"\n", at)
        call, at = data[at:end].decode().split(), end + 1
        if call[0] == "write":
            n = int(call.pop())
            call.append(data[at:at + n])
            at += n
        calls.append(call)
    return calls


class Effect:
    """The effect of one call. If `names` is set, it changes names in the folder `node`: {name: node, or None if
    removed}. Otherwise it writes `content` at `offset` of the file `node`, or truncates the file if content is None.
    `durable` is the call that makes the effect durable."""

    def __init__(self, call, node, names=None, offset=0, content=None):
        self.call, self.node, self.names, self.offset, self.content = call, node, names, offset, content
        self.durable = None


class Disk:
    """The state of a file system: the names in each folder and the content of each file, by node. Node 0 is the
    root."""

    def __init__(self, folders, names={0: {}}, content={}):
        self.folders, self.names, self.content = folders, {**names}, {**content}

    def apply(self, effect, content=None):
        """Applies an effect. For a torn write, `content` replaces the effect's content."""
        node = effect.node
        if effect.names is not None:
            self.names[node] = {**self.names.get(node, {}), **effect.names}
        elif effect.content is None:
            self.content[node] = b""
        else:
            content, old = effect.content if content is None else content, self.content.get(node, b"")
            self.content[node] = old[:effect.offset].ljust(effect.offset,
                                                           b"\0") + content + old[effect.offset + len(content):]

    def overlaid(self, effects, torn=None, content=None):
        disk = Disk(self.folders, self.names, self.content)
        for effect in effects:
            disk.apply(effect, content if effect is torn else None)
        return disk

    def reachable(self, pending):
        """Returns the nodes that have a name, or may have one if some of the pending effects are kept."""
        below = {node: set(names.values()) for node, names in self.names.items()}
        for effect in pending:
            below.setdefault(effect.node, set()).update((effect.names or {}).values())
        found, new = set(), {0}
        while new:
            found |= new
            new = {child for node in new for child in below.get(node, ()) if child is not None} - found
        return found

    def tree(self, node=0, path=""):
        """Returns {path: content}, where the content of a folder is None."""
        found = {}
        for name, child in self.names.get(node, {}).items():
            if child in self.folders:
                found[path + name] = None
                found |= self.tree(child, f"{path}{name}/")
            elif child is not None:
                found[path + name] = self.content.get(child, b"")
        return found


class History:
    """The effects of all recorded calls on an initially empty root, the call that makes each effect durable, and the
    call with an injected failure.

    lost: indices of fsync calls to ignore, as if the program lacked them."""

    def __init__(self, calls, root, lost=()):
        self.calls, self.root, self.lost, self.effects = calls, str(root), lost, []
        self.folders, self.open, self.nodes = {0}, {}, itertools.count(1)
        self.now, self.failed = Disk(self.folders), None  # failed: the name of the call, whether it was on a folder
        for i, call in enumerate(calls):
            getattr(self, "do_" + call[0])(i, *call[1:])

    def find(self, path):
        """Returns the folder, the name in it, and the node (None if there is none)."""
        node, words = 0, pathlib.PurePath(path).relative_to(self.root).parts
        if not words:
            return None, "", 0
        for word in words[:-1]:
            node = self.now.names[node][word]
        return node, words[-1], self.now.names.get(node, {}).get(words[-1])

    def add(self, effect):
        self.effects.append(effect)
        self.now.apply(effect)

    def do_open(self, i, fd, flags, path):
        folder, name, node = self.find(path)
        if node is None:
            node = next(self.nodes)
            self.add(Effect(i, node))
            self.add(Effect(i, folder, {name: node}))
        elif "t" in flags:
            self.add(Effect(i, node))
        self.open[fd] = [node, "a" in flags, 0]

    def do_write(self, i, fd, content):
        node, appends, offset = self.open[fd]
        offset = len(self.now.content[node]) if appends else offset
        self.add(Effect(i, node, offset=offset, content=content))
        self.open[fd][2] = offset + len(content)

    def do_fsync(self, i, fd):
        for effect in self.effects:
            if effect.node == self.open[fd][0] and effect.durable is None and i not in self.lost:
                effect.durable = i

    def do_close(self, i, fd):
        del self.open[fd]

    def do_mkdir(self, i, path):
        folder, name, _ = self.find(path)
        node = next(self.nodes)
        self.folders.add(node)
        self.add(Effect(i, folder, {name: node}))

    def do_remove(self, i, path):
        folder, name, _ = self.find(path)
        self.add(Effect(i, folder, {name: None}))

    def move(self, i, from_path, to_path, exchanges):
        (folder, old, node), (other, new, replaced) = self.find(from_path), self.find(to_path)
        left = {old: replaced if exchanges else None}
        self.add(Effect(i, other, {**(left if folder == other else {}), new: node}))
        if folder != other:  # two folders become durable separately
            self.add(Effect(i, folder, left))

    def do_rename(self, i, from_path, to_path):
        self.move(i, from_path, to_path, False)

    def do_exchange(self, i, from_path, to_path):
        self.move(i, from_path, to_path, True)

    def do_saved(self, i, iteration):
        pass

    def do_ended(self, i):
        pass

    def do_failed(self, i, name, *words):
        self.failed = name, name in ("fsync", "close") and self.open[words[0]][0] in self.folders
        if name == "close":
            del self.open[words[0]]

    # ---- crashes ----

    def choices(self, pending, rng, samples):
        """Yields subsets of the pending effects, beginning with none and all of them."""
        yield ()
        yield pending
        if len(pending) <= MOST_EXHAUSTIVE:
            for n in range(1, len(pending)):
                yield from itertools.combinations(pending, n)
            return
        for k, effect in enumerate(pending):
            yield (effect,)
            yield pending[:k] + pending[k + 1:]
            yield pending[:k]
        for _ in range(samples):
            yield tuple(effect for effect in pending if rng.random() < 0.5)

    def after(self, durable, pending, rng, samples):
        """Yields the trees that may remain after a crash."""
        for kept in self.choices(pending, rng, samples):
            yield durable.overlaid(kept).tree()
        for effect in pending:
            if effect.content:
                part = effect.content[:rng.randrange(0, len(effect.content), SECTOR)]
                for content in part, bytes(len(effect.content)):
                    yield durable.overlaid(pending, effect, content).tree()

    def crashes(self, seed, samples, first=0, every=False):
        """Yields (number of calls before the crash, tree), where the number is at least `first`. Between two completed
        saves or runs, each tree occurs only once. No reader opens files with temporary names, so unless `every` is set,
        only one of the trees that differ only in these files is yielded. It is chosen at random."""
        rng, seen, saved, durable, pending = random.Random(seed), set(), 0, Disk(self.folders), []
        effects = iter(self.effects + [None])
        effect = next(effects)
        for call in range(len(self.calls) + 1):
            while effect and effect.call < call:
                pending.append(effect)
                effect = next(effects)
            for e in pending:
                if e.durable == call - 1:
                    durable.apply(e)  # a sync makes all earlier effects on its node durable, so order is preserved
            pending = [e for e in pending if e.durable != call - 1]
            alive = durable.reachable(pending)
            pending = [e for e in pending if e.node in alive]
            if call and self.calls[call - 1][0] in ("saved", "ended"):
                saved = call
            if call < first:
                continue
            trees = list(self.after(durable, tuple(pending), rng, samples))
            rng.shuffle(trees)
            for tree in trees:
                key = hash((saved, frozenset(item for item in tree.items() if every or not is_temporary(item[0]))))
                if key not in seen:
                    seen.add(key)
                    yield call, tree


def is_temporary(path):
    return ".tmp" in path or ".partial-" in path


def on_disk(root):
    """Returns the tree of a folder on the real disk."""
    return {str(p.relative_to(root)): None if p.is_dir() else p.read_bytes() for p in root.rglob("*")}


def lay_out(tree, root):
    for path, content in sorted(tree.items()):
        if content is None:
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).write_bytes(content)
