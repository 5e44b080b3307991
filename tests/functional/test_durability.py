"""A power failure at any moment loses no announced checkpoint, and never leaves a damaged one under a valid name.

A build of the program that records its calls (recorder.c) saves, replaces and prunes checkpoints. Each state that may
remain after a crash (crash.py) is written to a folder. In it, the program must find the newest announced checkpoint, or
the one that was just being published. A failing call (full disk, I/O error) must end the run with an error message, and
the previous checkpoint must load. The same is tested for datasets and exported models.

With DURABILITY=all in the environment, all states and faults are tested (nightly). DURABILITY_SEED is the seed of the
samples."""
import fnmatch
import os
import random
import re

import crash
from harness import *

ALL = os.environ.get("DURABILITY") == "all"
SEED = int(os.environ.get("DURABILITY_SEED", "0"))
RECORDER = os.environ["RECORDER_PROGRAM"]
SAMPLES = 100 if ALL else 4  # random subsets at each call
print(f"DURABILITY_SEED={SEED}")

SMALL = """--num-layers 1 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8
  --micro-batch-size 1 --global-batch-size 2 --lr 1e-2 --lr-decay-iters 20 --save-interval 2 --eval-iters 0
  --log-interval 1 --cpu-threads 1 --split 100,0,0""".split() + TOKENIZER
(WORK / "corpus.txt").write_text("".join(f"Line {i} of a small corpus.\n" for i in range(20)))
(WORK / "other.txt").write_text("Another corpus, and a shorter one.\n" * 3)


def preprocess(text, prefix):
    return ["preprocess", "--input", WORK / text, "--input-format", "paragraphs", "--output-prefix", prefix,
            "--append-eod", "--overwrite", *TOKENIZER]


isotron(*preprocess("corpus.txt", WORK / "corpus"))
TRAIN = ["pretrain", *SMALL, "--data-path", WORK / "corpus_text_document"]


# ---- recording ----

def recorded(root, *words, **settings):
    """Runs the recording program, which writes root.trace. Returns its exit status and output."""
    environment = os.environ | {"RECORDER_ROOT": str(root), "RECORDER_TRACE": f"{root}.trace"}
    environment |= {f"RECORDER_{name}": str(value) for name, value in settings.items()}
    done = subprocess.run([RECORDER, *map(str, words)], capture_output=True, text=True, env=environment, timeout=120)
    return done.returncode, done.stdout + done.stderr


def history(root, *runs, **settings):
    """Records the history of successive runs that start from an empty folder. Fails if the replay differs from the
    disk, because some calls were then not recorded."""
    root.mkdir()
    for words in runs:
        status, text = recorded(root, *words, **settings)
        assert status == 0, text
        with open(f"{root}.trace", "a") as trace:
            trace.write("ended\n")
    h = crash.History(crash.read_record(pathlib.Path(f"{root}.trace")), root)
    assert h.now.tree() == crash.on_disk(root), f"{root.name}: the record lacks calls that change files"
    return h


# ---- what the program finds in a folder ----

NOTHING = "no checkpoint"
known = {}


def remembered(tree, find):
    key = hash((find, frozenset(item for item in tree.items() if ALL or not crash.is_temporary(item[0]))))
    if key not in known:
        folder = WORK / "state"
        folder.mkdir()
        crash.lay_out(tree, folder)
        known[key] = find(folder)
        shutil.rmtree(folder)
    return known[key]


def digest(folder, *options):
    """Returns the hash of the content of the newest checkpoint in a folder, or the error."""
    done = subprocess.run([PROGRAM, "inspect", "--checkpoint", folder, "--hash", *options],
                          capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout.splitlines()[-1].split()[0]
    return NOTHING if "contains no checkpoint; check" in done.stderr else done.stderr.strip()


def newest(root):
    return digest(root / "deep/er/ckpt")


def alone(root):
    return digest(root)


class Saves:
    """The checkpoints of a history: the calls that published and announced each, and the digests of their content
    (given, or read by the program after each announcement)."""

    def __init__(self, h, digests=None):
        self.published, self.announced, self.digests = [], [], digests or []
        for i, call in enumerate(h.calls):
            if call[0] in ("rename", "exchange") and call[1] == call[2] + ".tmp":
                self.published.append(i)
            if call[0] == "saved" and len(self.announced) < len(self.published):
                self.announced.append(i)
                if not digests:
                    self.digests.append(remembered(crash.History(h.calls[:i + 1], h.root).now.tree(), newest))

    def verdict(self, calls, tree):
        """Judges a tree that remains after a crash that follows `calls` calls. Returns the error, or None."""
        whole, begun = (sum(i < calls for i in some) for some in (self.announced, self.published))
        allowed = self.digests[max(whole - 1, 0):begun] + ([] if whole else [NOTHING])
        found = remembered(tree, newest)
        if found not in allowed:
            return f"{whole} checkpoints are announced, but the newest is: {found}"
        for path in tree:
            name = path.rpartition("/")[2]
            if name.startswith("iter_") and name.removeprefix("iter_").isdigit():
                inside = {name: None} | {p.replace(path, name, 1): c for p, c in tree.items()
                                         if p.startswith(path + "/")}
                if remembered(inside, alone) not in self.digests:
                    return f"{name} looks like a checkpoint but is not one: {remembered(inside, alone)}"
        return None


def judged(h, saves):
    """Yields each tree with its error (None if it is correct)."""
    for calls, tree in h.crashes(SEED, SAMPLES, every=ALL):
        wrong = saves.verdict(calls, tree)
        last = h.calls[calls - 1]
        yield tree, wrong and (f"{pathlib.Path(h.root).name}, after call {calls}, {last[0]} {str(last[-1])[-80:]}: "
                               f"{wrong}")


# ---- checkpoints ----

def scenario(name, options, *runs, **settings):
    root = WORK / name
    h = history(root, *([*TRAIN, *options, "--save", root / "deep/er/ckpt", *run] for run in runs), **settings)
    saves, trees, wrong = Saves(h), [], []
    for tree, why in judged(h, saves):
        (wrong if why else trees).append(why or tree)
    assert not wrong, (f"{len(wrong)} of {len(wrong) + len(trees)} states are not sound, such as\n"
                       + "\n".join(wrong[::len(wrong) // 5 + 1]))
    print(f"{name}: {len(h.calls)} calls, {len(saves.announced)} checkpoints, {len(trees)} states are sound")
    return h, saves, trees


def resumes(name, options, saves, trees):
    """A run that is resumed after the crash, even without any checkpoint, must end bitwise equal to the uninterrupted
    run."""
    for i, tree in enumerate([{}] + random.Random(SEED).sample(trees, min(len(trees), 100 if ALL else 6))):
        folder = WORK / f"{name}-resumed-{i}"
        folder.mkdir()
        crash.lay_out(tree, folder)
        isotron(*TRAIN, *options, "--train-iters", 6, "--save", folder / "deep/er/ckpt",
                "--load", folder / "deep/er/ckpt")
        assert newest(folder) == saves.digests[-1], f"{name}: the run resumed after a crash has another result"
        shutil.rmtree(folder)


PRUNE = ["--most-recent-k", 2]
TO_4, TO_6, GO_ON = ["--train-iters", 4], ["--train-iters", 6], ["--load", WORK / "sync/deep/er/ckpt"]
CACHE = ["--data-cache-path", WORK / "sync/cache"]
h, saves, trees = scenario("sync", PRUNE + CACHE, TO_4, TO_6 + GO_ON)
assert len(set(saves.digests)) == 3
whole = h.now.tree()
assert all(whole[path] == content for tree in trees for path, content in tree.items()
           if path.startswith("cache/") and not crash.is_temporary(path)), "the index cache has a damaged file"
resumes("sync", PRUNE, saves, trees)

# With one flipped bit in any file of the newest checkpoint, loading rejects it and names the other checkpoint.
for path in [path for path in whole if "iter_0000006/" in path]:
    bits = bytearray(whole[path])
    bits[len(bits) // 2 // 64 * 64] ^= 1
    rotten = WORK / "rotten"
    rotten.mkdir()
    crash.lay_out(whole | {path: bytes(bits)}, rotten)
    text = isotron(*TRAIN, *TO_6, "--load", rotten / "deep/er/ckpt", expect=2)
    assert "is damaged" in text and "/deep/er/ckpt/iter_0000004'" in text, text
    shutil.rmtree(rotten)

# A save replaces the newest checkpoint, because the run is restarted from an older one with another weight decay.
def back(name):
    return [*TO_4, "--load", WORK / name / "deep/er/ckpt", "--ckpt-step", 2, "--weight-decay", 0.5]


_, replaced, _ = scenario("replaced", [], TO_4, back("replaced"))
assert len(set(replaced.digests)) == 3

# Asynchronous saves: writing a shard takes longer than the steps before the next save, but must store the values of the
# step that started it.
RANKS = ["--ranks", 2, "--use-distributed-optimizer"]
isotron(*TRAIN, *RANKS, *TO_6, "--save", WORK / "beside")
_, async_saves, trees = scenario("async", [*PRUNE, *RANKS, "--async-save"], TO_6, DELAY=20)
assert async_saves.digests == [digest(WORK / "beside", "--ckpt-step", str(k))
                               for k in (2, 4, 6)], "an asynchronous save is not bitwise equal"
resumes("async", [*PRUNE, *RANKS, "--async-save"], async_saves, trees)


# ---- self-test: traces with a missing sync, or with calls in the wrong order, must fail ----

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
    assert why, f"not detected: {what}"
    print(f"detected: {what}")


for what, pattern in {"shards are not synced": "shard_", "manifests are not synced": "manifest",
                      "the tracker is not synced": "latest_", "a checkpoint's folder is not synced": r"iter_\d+.tmp$",
                      "the folder of checkpoints is not synced": "/ckpt$",
                      "a new folder's parent is not synced": "/deep$"}.items():
    planted(what, h.calls, saves, calls_of(h, "fsync", pattern))
last = max(i for i in calls_of(h, "fsync", "/ckpt$"))
planted("a pruned checkpoint is deleted before its new name is durable", h.calls, saves, [last])
for a, b in zip(calls_of(h, "rename", r"iter_\d+.tmp$"), calls_of(h, "rename", r"latest_")):
    late = h.calls[:a] + h.calls[a + 1:b + 1] + [h.calls[a]] + h.calls[b + 1:]
    planted("the tracker names a checkpoint before its folder exists", late, saves)


# ---- faults: each call of a run fails once, in a separate run ----

def faults(name, before, run, check, step=1):
    """Makes each call fail in a separate run. check(history, exit status, tree) returns an error or None. It is called
    for the state on the disk, and for crashes after the end of the run."""
    root = WORK / name
    tree, record, n = history(root, *before).now.tree(), pathlib.Path(f"{root}.trace").read_bytes(), 0
    for k in range(1 + SEED % step, 10**6, step):
        shutil.rmtree(root)
        root.mkdir()
        crash.lay_out(tree, root)
        pathlib.Path(f"{root}.trace").write_bytes(record)
        status, text = recorded(root, *run, FAIL=k)
        h = crash.History(crash.read_record(pathlib.Path(f"{root}.trace")), root)
        if not h.failed:
            break
        what, n = f"{name}: call {k}, {h.failed[0]}, fails", n + 1
        if status == 0:
            assert h.failed == ("close", True), f"{what}, but the run succeeds"
        else:
            assert 0 < status < 100, f"{what}, exit status {status}: {text}"
            assert re.search("No space left on device|Input/output error",
                             text), f"{what}, exit status {status}: {text}"
        for left in [crash.on_disk(root)] + [tree for _, tree in h.crashes(SEED, SAMPLES, len(h.calls))]:
            wrong = check(h, status, left)
            assert not wrong, f"{what}, exit status {status}: {wrong}"
    print(f"{name}: {n} calls have failed")


def checkpoint_faults(name, saves, before, run, step=1):
    def check(h, status, tree):
        last = remembered(tree, newest)
        if status == 0 and last != saves.digests[-1]:
            return f"the newest checkpoint is {last}"
        return Saves(h, saves.digests).verdict(len(h.calls), tree)

    folder = WORK / name / "deep/er/ckpt"
    faults(name, [[*TRAIN, *before, "--save", folder]], [*TRAIN, *run, "--save", folder], check, step)


FROM = ["--load", WORK / "broken-sync/deep/er/ckpt"]
checkpoint_faults("broken-sync", saves, [*PRUNE, *TO_4], [*PRUNE, *TO_6, *FROM])
checkpoint_faults("broken-replaced", replaced, TO_4, back("broken-replaced"))
FROM = ["--load", WORK / "broken-async/deep/er/ckpt"]
checkpoint_faults("broken-async", async_saves, [*PRUNE, *RANKS, *TO_4], [*PRUNE, *RANKS, *TO_6, *FROM, "--async-save"],
                  1 if ALL else 5)

# Short writes, and a file system that cannot exchange two names (the older checkpoint may then
# remain under another name).
_, short, _ = scenario("short", PRUNE, TO_6, SHORT=1)
assert short.digests == saves.digests, "a short write loses bytes"
h = history(WORK / "plain", *([*TRAIN, *run, "--save", WORK / "plain/deep/er/ckpt"] for run in (TO_4, back("plain"))),
            PLAIN=1)
plain = Saves(h)
assert plain.digests == replaced.digests, "a checkpoint is not replaced if names cannot be exchanged"
n = 0
for calls, tree in h.crashes(SEED, SAMPLES):
    if plain.verdict(calls, tree):
        n += 1
        aside = next((path for path in tree if path.endswith(".old")), "nothing")
        inside = {path.replace(aside, "iter_" + aside[-11:-4], 1): c for path, c in tree.items()
                  if path.startswith(aside)}
        assert remembered(inside, alone) in plain.digests, f"plain, after call {calls}: {sorted(tree)}"
print(f"plain: in {n} states a checkpoint has another name")


# ---- files that belong together: after a crash, all are old, all are new, or none is read ----

def whole_files(tree):
    return {path: content for path, content in tree.items() if content is not None and not crash.is_temporary(path)}


def together(name, key, *runs):
    """Tests crashes and faults. `key` is a pattern of the name of the file without which the other files are not
    read."""
    h = history(WORK / name, *runs)
    ends = [i for i, call in enumerate(h.calls) if call[0] == "ended"]
    versions = [whole_files(crash.History(h.calls[:i], h.root).now.tree()) for i in ends]
    assert len(set(map(str, versions))) == len(versions)
    n = 0
    for n, (calls, tree) in enumerate(h.crashes(SEED, SAMPLES), 1):
        done, found = sum(i < calls for i in ends), whole_files(tree)
        allowed = versions[max(done - 1, 0):done + 1] if calls - 1 not in ends else versions[done - 1:done]
        is_absent = calls - 1 not in ends and not any(fnmatch.fnmatch(pathlib.PurePath(path).name, key)
                                                      for path in found)
        assert is_absent or found in allowed, (f"{name}, after call {calls}, {h.calls[calls - 1][0]}: {sorted(found)} "
                                               f"are of different runs")
    print(f"{name}: {len(h.calls)} calls, {n} states are sound")

    def check(h, status, tree):
        found = whole_files(tree)
        is_absent = status and not any(fnmatch.fnmatch(pathlib.PurePath(path).name, key) for path in found)
        is_whole = is_absent or found in versions[0 if status else -1:]
        return None if is_whole else f"{sorted(found)} are of different runs"

    shutil.rmtree(WORK / name)
    pathlib.Path(f"{WORK / name}.trace").unlink()
    faults(name, runs[:-1], runs[-1], check)


together("dataset", "*.idx",
         *([*preprocess(text, WORK / "dataset/corpus"), "--overwrite"] for text in ("corpus.txt", "other.txt")))
for text in ("corpus", "other"):
    (WORK / text).mkdir()
    isotron(*preprocess(f"{text}.txt", WORK / text / "part"))
together("merged", "*.idx", *(["merge", "--input", WORK / text, "--output-prefix", WORK / "merged/all", "--overwrite"]
                              for text in ("corpus", "other")))
together("exported", "config.json",
         *(["convert", "--use-checkpoint-args", "--load", WORK / "beside", "--to-hf", WORK / "exported",
                                       "--hf-dtype", dtype, "--overwrite"] for dtype in ("float32", "bfloat16")))
