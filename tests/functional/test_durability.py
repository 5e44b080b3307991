"""A power failure at any moment loses nothing that was announced, and nothing damaged is taken for whole. A program that records its
calls (recorder.c) saves, replaces and prunes checkpoints; every state that a crash may leave of them (crash.py) is laid out, and the
program itself must find the newest checkpoint that it had announced, or the one that it was about to. A call that fails (full disk,
broken disk) ends the run with a message, and what was saved before is still there.

DURABILITY=all in the environment: more states, every fault (nightly). DURABILITY_SEED: of what is sampled."""
import os
import random
import re

import crash
from harness import *

ALL = os.environ.get("DURABILITY") == "all"
SEED = int(os.environ.get("DURABILITY_SEED", "0"))
RECORDER = os.environ["RECORDER_PROGRAM"]
SAMPLES = 200 if ALL else 4  # random subsets at each call
print(f"DURABILITY_SEED={SEED}")

SMALL = """--num-layers 1 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 1
  --global-batch-size 2 --lr 1e-2 --lr-decay-iters 20 --save-interval 2 --eval-iters 0 --log-interval 1
  --cpu-threads 1 --split 100,0,0""".split() + TOKENIZER
(WORK / "corpus.txt").write_text("".join(f"Line {i} of a small corpus.\n" for i in range(20)))
(WORK / "other.txt").write_text("Another corpus, and a shorter one.\n" * 3)


def preprocess(text, prefix):
    return ["preprocess", "--input", WORK / text, "--input-format", "paragraphs", "--output-prefix", prefix, "--append-eod", *TOKENIZER]


isotron(*preprocess("corpus.txt", WORK / "corpus"))
TRAIN = ["pretrain", *SMALL, "--data-path", WORK / "corpus_text_document"]


# ---- recording ----

def recorded(root, *words, **settings):
    """Runs the recording program, whose record is root.trace. -> exit status, output"""
    environment = os.environ | {"RECORDER_ROOT": str(root), "RECORDER_TRACE": f"{root}.trace"}
    environment |= {f"RECORDER_{name}": str(value) for name, value in settings.items()}
    done = subprocess.run([RECORDER, *map(str, words)], capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


def history(root, *runs, **settings):
    """Of runs one after the other on an empty folder. What is replayed must be what is on the disk: nothing was overlooked."""
    root.mkdir()
    for words in runs:
        status, text = recorded(root, *words, **settings)
        assert status == 0, text
    h = crash.History(crash.read_record(pathlib.Path(f"{root}.trace")), root)
    assert h.now.tree() == crash.on_disk(root), f"{root.name}: calls that change files are missing in the record"
    return h


# ---- what the program makes of a state ----

NOTHING = "no checkpoint"
known = {}


def remembered(tree, find):
    key = hash((find, frozenset(item for item in tree.items() if not crash.is_temporary(item[0]))))
    if key not in known:
        folder = WORK / "state"
        folder.mkdir()
        crash.lay_out(tree, folder)
        known[key] = find(folder)
        shutil.rmtree(folder)
    return known[key]


def digest(folder, *options):
    """The hash of all that the newest checkpoint in a folder holds."""
    done = subprocess.run([PROGRAM, "inspect", "--checkpoint", folder, "--hash", *options], capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout.splitlines()[-1].split()[0]
    return NOTHING if "holds no checkpoint; check" in done.stderr else done.stderr.strip()


def newest(root):
    return digest(root / "deep/er/ckpt")


def alone(root):
    return digest(root)


class Saves:
    """The checkpoints of a history: the calls that published and announced them, and what they hold."""

    def __init__(self, h):
        self.published, self.announced, self.digests = [], [], []
        for i, call in enumerate(h.calls):
            if call[0] in ("rename", "exchange") and call[1] == call[2] + ".tmp":
                self.published.append(i)
            if call[0] == "saved" and len(self.announced) < len(self.published):
                self.announced.append(i)
                self.digests.append(remembered(crash.History(h.calls[:i + 1], h.root).now.tree(), newest))

    def verdict(self, calls, tree):
        """What is wrong with a tree that a crash has left after so many calls, or None."""
        whole, begun = (sum(i < calls for i in some) for some in (self.announced, self.published))
        allowed = self.digests[max(whole - 1, 0):begun] + ([] if whole else [NOTHING])
        found = remembered(tree, newest)
        if found not in allowed:
            return f"{whole} checkpoints are announced, the newest is: {found}"
        for path in tree:
            name = path.rpartition("/")[2]
            if name.startswith("iter_") and name.removeprefix("iter_").isdigit():
                inside = {name: None} | {p.replace(path, name, 1): c for p, c in tree.items() if p.startswith(path + "/")}
                if remembered(inside, alone) not in self.digests:
                    return f"{name} looks like a checkpoint and is none: {remembered(inside, alone)}"
        return None


def judged(h, saves):
    """-> tree, what is wrong with it or None"""
    for calls, tree in h.crashes(SEED, SAMPLES):
        wrong = saves.verdict(calls, tree)
        yield tree, wrong and f"{pathlib.Path(h.root).name}, after call {calls}, {h.calls[calls - 1][0]} {str(h.calls[calls - 1][-1])[-80:]}: {wrong}"


# ---- checkpoints ----

def scenario(name, options, *runs, **settings):
    root = WORK / name
    h = history(root, *([*TRAIN, *options, "--save", root / "deep/er/ckpt", *run] for run in runs), **settings)
    saves, trees, wrong = Saves(h), [], []
    for tree, why in judged(h, saves):
        (wrong if why else trees).append(why or tree)
    assert not wrong, f"{len(wrong)} of {len(wrong) + len(trees)} states are not sound, as\n" + "\n".join(wrong[::len(wrong) // 5 + 1])
    print(f"{name}: {len(h.calls)} calls, {len(saves.announced)} checkpoints, {len(trees)} states are sound")
    return h, saves, trees


def resumes(name, options, saves, trees):
    """A run that goes on after the crash ends as the one that was never stopped."""
    for i, tree in enumerate(random.Random(SEED).sample(trees, len(trees) if ALL else 6)):
        folder = WORK / f"{name}-resumed-{i}"
        folder.mkdir()
        crash.lay_out(tree, folder)
        isotron(*TRAIN, *options, "--train-iters", 6, "--save", folder / "deep/er/ckpt", "--load", folder / "deep/er/ckpt")
        assert newest(folder) == saves.digests[-1], f"{name}: resumed after a crash, the run ends elsewhere"
        shutil.rmtree(folder)


PRUNE = ["--most-recent-k", 2]
TO_4, TO_6, GO_ON = ["--train-iters", 4], ["--train-iters", 6], ["--load", WORK / "sync/deep/er/ckpt"]
CACHE = ["--data-cache-path", WORK / "sync/cache"]
h, saves, trees = scenario("sync", PRUNE + CACHE, TO_4, TO_6 + GO_ON)
assert len(set(saves.digests)) == 3
resumes("sync", PRUNE, saves, trees)

# A checkpoint takes the place of another one of the same step: the run begins again, with other numbers.
again, replaced, _ = scenario("replaced", [], TO_4, [*TO_4, "--weight-decay", 0.5])
assert len(set(replaced.digests)) == 4

# In the background: a shard takes longer to write than the steps up to the next save, and yet holds what it would hold without.
RANKS = ["--ranks", 2, "--use-distributed-optimizer"]
isotron(*TRAIN, *RANKS, *TO_6, "--save", WORK / "beside")
_, async_saves, trees = scenario("async", [*PRUNE, *RANKS, "--async-save"], TO_6, DELAY=20)
assert async_saves.digests == [digest(WORK / "beside", "--ckpt-step", str(k)) for k in (2, 4, 6)], "an asynchronous save holds other bits"
resumes("async", [*PRUNE, *RANKS, "--async-save"], async_saves, trees)


# ---- the judge is judged: a program that lacks these calls, or makes them in another order, is found out ----

def calls_of(h, name, pattern):
    paths, found = {}, []
    for i, call in enumerate(h.calls):
        if call[0] == "open":
            paths[call[1]] = call[3]
        if call[0] == name and re.search(pattern, paths.get(call[1], call[1])):
            found.append(i)
    return found


def planted(what, calls, saves, lost=()):
    why = next((why for _, why in judged(crash.History(calls, h.root, lost), saves) if why), None)
    assert why, f"nobody notices: {what}"
    print(f"noticed: {what}")


for what, pattern in {"shards are not synced": "shard_", "manifests are not synced": "manifest", "the tracker is not synced": "latest_",
                      "a checkpoint's folder is not synced": r"iter_\d+.tmp$", "the folder of checkpoints is not synced": "/ckpt$",
                      "a new folder's parent is not synced": "/deep$"}.items():
    planted(what, h.calls, saves, calls_of(h, "fsync", pattern))
last = max(i for i in calls_of(h, "fsync", "/ckpt$"))
planted("what is pruned is deleted before its new name is durable", h.calls, saves, [last])
for a, b in zip(calls_of(h, "rename", r"iter_\d+.tmp$"), calls_of(h, "rename", r"latest_")):
    late = h.calls[:a] + h.calls[a + 1:b + 1] + [h.calls[a]] + h.calls[b + 1:]
    planted("the tracker names a checkpoint before its folder is there", late, saves)
