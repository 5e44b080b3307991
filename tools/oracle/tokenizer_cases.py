#!/usr/bin/env python3
"""Writes tests/data/tokenizer/: small tokenizers that are trained with the `tokenizers` library, and the library's
results for difficult texts.

usage: tools/oracle/tokenizer_cases.py tests/data/tokenizer [FILE...]
       FILE: only these files and their cases are rewritten

The output is deterministic for given versions of Python (whose pydoc topics are the training text) and tokenizers.
cases.json contains both versions. A case is {"file", "flags", "text", "times", "count", "fnv"} and, for short ones,
{"ids", "decoded"}: text (base64) repeated `times` times gives `count` ids; fnv is FNV-1a, 64 bits, of the ids as
little-endian int32; decoded is base64. "offsets" gives the character of the decoded text at which each token begins.
"spans" gives the first and the last character + 1 of the text that each token represents, if the library returns them.
"regex" gives the non-empty pieces into which a pattern splits a text, and states which of them match."""
import base64, json, os, platform, random, tempfile
from pydoc_data import topics

from cli import Command

command = Command(__doc__, "tokenizers sentencepiece tiktoken google.protobuf")
command.add_argument("folder")
command.add_argument("only", nargs="*")
options = command.parse_args()

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (AddedToken, Regex, Tokenizer, __version__, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)
from awkward import ADD_SPECIAL, AS_TEXT, PIECES, SKIP_SPECIAL, fnv, original, text

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}]%s(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join([CASED % ("*", "+"), CASED % ("+", "*"),
                  r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"])
HARMONY = {2: "return", 3: "constrain", 5: "channel", 6: "start", 7: "end", 8: "message", 12: "call"}
CORPUS = [topics.topics[k] for k in sorted(topics.topics)] + [p + q for p in PIECES for q in PIECES]


def train(tok, size, byte_level=True, **options):
    """Trains a tokenizer. jansson rejects keys that contain NUL, and limit_alphabet would break ties at random, so the
    text has only ASCII characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) if byte_level else []
    corpus = [t.replace("\0", "") for t in CORPUS if byte_level or t.isascii()]
    tok.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                                        initial_alphabet=alphabet, **options))


def split(pattern, behavior="isolated", invert=False): return pre_tokenizers.Split(pattern, behavior, invert)


def byte_level(size, *pre, ignore_merges=False, normalizer=None):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([*pre, pre_tokenizers.ByteLevel(add_prefix_space=False,
                                                                                use_regex=False)])
    if normalizer: tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    train(tok, size)
    return tok


def template(tok, before, after=()):
    names = [*before, "$A", *after]
    return processors.TemplateProcessing(single=names, pair=[*names, "$B:1"],
                                         special_tokens=[(t, tok.token_to_id(t)) for t in (*before, *after)])


def llama3():
    tok = byte_level(900, split(Regex(LLAMA3)), ignore_merges=True)
    tok.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                              template(tok, ["<|begin_of_text|>"])])
    return tok


def harmony():
    """Returns a tokenizer.json like that of GPT-OSS, in which special tokens separate the parts of a conversation."""
    tok = byte_level(900, split(Regex(O200K)))
    tok.post_processor = processors.ByteLevel(trim_offsets=True)
    tok.add_special_tokens(["<|startoftext|>", "<|endoftext|>",
                            *(f"<|{HARMONY.get(i, f'reserved_20{i:04}')}|>" for i in range(18)), "<|endofprompt|>"])
    return tok


def qwen2():
    tok = byte_level(900, split(Regex(QWEN2)), normalizer=normalizers.NFC())
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tok.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("caf\u00e9", normalized=True),
                    AddedToken("zqword", single_word=True), AddedToken("<mask>", lstrip=True),
                    AddedToken("<sep>", rstrip=True, normalized=False), AddedToken("  ", normalized=False),
                    AddedToken("    ", normalized=False), AddedToken("<|im", normalized=False),
                    AddedToken("e\u0301t\u00e9")])
    return tok


def sentencepiece():
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    # for fast training; published files have no pre-tokenizer
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    train(tok, 900, byte_level=False, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)])
    data = json.loads(tok.to_str())
    data["pre_tokenizer"] = None
    data["added_tokens"] = data["added_tokens"][:3]  # as in Llama-2, the characters <0x41> are ordinary text
    tok = Tokenizer.from_str(json.dumps(data))
    tok.post_processor = template(tok, ["<s>"], ["</s>"])
    return tok


def metaspace(scheme, fuse):
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse))
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(),
                                           normalizers.Replace(Regex(r"[ \t]{3,}"), "  ")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tok.decoder = decoders.Metaspace(prepend_scheme=scheme)
    train(tok, 400, byte_level=False, special_tokens=["<unk>", "<s>", "</s>"])
    return tok


def splits():
    """A tokenizer with all other pre-tokenizers and behaviours, and with regexes on which Oniguruma and PCRE2
    differ."""
    return byte_level(
        500, pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("contiguous"),
        split(Regex(r"[A-Z]"), "merged_with_next"), split("e", "merged_with_previous"), split(Regex(r"\w{2,3}+")),
        split(Regex(r"^.{,2}$|[\w-]a{2}?\v?|\Bz"), "contiguous"),
        split(Regex(r"[^\u4e00-\u9fa5\p{Hiragana}]+|\p{^Latin}\b"), "removed", True), split(Regex(r"(?m:a.b)|(?=z)")),
        normalizer=normalizers.Sequence([normalizers.NFKD(), normalizers.Replace("\u0301", "")]))


def prefix():
    """A tokenizer with GPT-2's regex and add_prefix_space, as in RoBERTa."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tok.normalizer = normalizers.NFD()
    tok.decoder = decoders.ByteLevel()
    train(tok, 500)
    tok.add_special_tokens(["<s>", AddedToken("</s>"), AddedToken("<mask>", lstrip=True)])
    tok.post_processor = processors.RobertaProcessing(("</s>", tok.token_to_id("</s>")),
                                                      ("<s>", tok.token_to_id("<s>")))
    return tok


def bert():
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer, tok.decoder = normalizers.BertNormalizer(), decoders.WordPiece()
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.train_from_iterator([t.replace("\0", "") for t in CORPUS],
                            trainers.WordPieceTrainer(vocab_size=900, show_progress=False,
                                                      special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tok


def word_level():
    tok = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFD(), normalizers.StripAccents(),
                                           normalizers.Strip(left=False)])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    tok.train_from_iterator([t.replace("\0", "") for t in CORPUS],
                            trainers.WordLevelTrainer(vocab_size=400, show_progress=False, special_tokens=["<unk>"]))
    return tok


def unigram(folder):
    """A tokenizer with SentencePiece's scores and charsmap, as in the tokenizer.json of T5 and XLM-R."""
    model = sentencepiece_model(f"{folder}/unigram.model")
    tok = Tokenizer(models.Unigram([(p.piece, p.score) for p in model.pieces], unk_id=0, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap),
                                           normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.Metaspace(), decoders.Sequence([decoders.ByteFallback(),
                                                                                    decoders.Metaspace()])
    tok.add_special_tokens(["<unk>", "<s>", "</s>", "<extra_id_0>"])
    tok.post_processor = template(tok, [], ["</s>"])
    return tok


def first(folder):
    """A tokenizer that prepends a metaspace to a text whose beginning is changed or deleted. Tokens are characters."""
    model = sentencepiece_model(f"{folder}/unigram.model")
    tok = Tokenizer(models.Unigram([("<unk>", -9.0), ("\u2581", -1.0),
                                    *((chr(c), -1.0 - c % 7) for c in range(33, 127))], unk_id=0))
    tok.normalizer = normalizers.Sequence([normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap),
                                           normalizers.BertNormalizer(), normalizers.Replace(Regex("^a.| {2,}"), "-b"),
                                           normalizers.Strip(), normalizers.Prepend("<")])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(),
                                                 pre_tokenizers.Metaspace(prepend_scheme="first")])
    tok.decoder = decoders.Metaspace(prepend_scheme="first")
    tok.add_tokens(["<tool>"])
    return tok


RULES = {"\ufb01": "fi", "\u2460": "1", "\u3000": " ", "\u00a0": " ", "\t": " ", "\n": " ", "\r": " ", "\u200b": " ",
         "e\u0301": "\u00e9", "\ufeff": "", "\0": "", "\u00bd": "1/2", "ab\u0301": "X", "\u212b": "A\u030a"}
SENTENCEPIECE = {"unigram.model": {"byte_fallback": True, "user_defined_symbols": ["<sep>", "the", "x"],
                                   "control_symbols": ["<ctl>"], "pad_id": 3},
                 "bpe.model": {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False,
                               "split_digits": True, "user_defined_symbols": ["<tool>", "a b", "\u4e2d"]},
                 "suffix.model": {"treat_whitespace_as_suffix": True, "unk_surface": " ?? "}}


def train_sentencepiece(path, **options):
    with tempfile.TemporaryDirectory() as dir:
        with open(f"{dir}/rules.tsv",
                  "w") as f: f.writelines(" ".join(f"{ord(c):X}" for c in k) + "\t" + " ".join(f"{ord(c):X}" for c in v)
                                          + "\n" for k, v in RULES.items() if k != "\0")
        with open(f"{dir}/text", "w") as f: f.writelines(line + "\n" for t in CORPUS if "\0" not in t
                                                         for line in t.split("\n") if line.strip())
        spm.SentencePieceTrainer.train(input=f"{dir}/text", model_prefix=f"{dir}/m", vocab_size=700,
                                       character_coverage=0.98, num_threads=1, minloglevel=2,
                                       normalization_rule_tsv=f"{dir}/rules.tsv", **options)
        model = sentencepiece_model(f"{dir}/m.model")
    model.trainer_spec.ClearField("input")
    model.trainer_spec.ClearField("model_prefix")
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    with open(path, "wb") as f: f.write(model.SerializeToString())


def sentencepiece_model(path):
    model = sentencepiece_model_pb2.ModelProto()
    with open(path, "rb") as f: model.ParseFromString(f.read())
    return model


def tiktoken(folder):
    """tiktoken files with the ranks of GPT-2's files, in which <|endoftext|> comes first."""
    with open(f"{folder}/gpt2/vocab.json") as f: vocab = json.load(f)
    spelled = {c: b for b, c in zip([*range(33, 127), *range(161, 173), *range(174, 256)],
                                    map(chr, [*range(33, 127), *range(161, 173), *range(174, 256)]))}
    spelled.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in spelled.values())})
    with open(f"{folder}/gpt2.tiktoken", "w") as f:
        f.writelines(f"{base64.b64encode(bytes(spelled[c] for c in t)).decode()} {i - 1}\n"
                     for t, i in sorted(vocab.items(), key=lambda x: x[1]) if i)


def gpt2_files(folder):
    small = Tokenizer(models.BPE())
    small.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    train(small, 900, special_tokens=["<|endoftext|>"])
    os.makedirs(f"{folder}/gpt2", exist_ok=True)
    small.model.save(f"{folder}/gpt2")


def trained(folder):
    """The result of training with the library on tests/data/corpus.txt. isotron train-tokenizer must write the same
    file."""
    with open(f"{folder}/../corpus.txt") as f: text = f.read()
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.train_from_iterator([text], trainers.BpeTrainer(vocab_size=600, min_frequency=2, show_progress=False,
                                                        special_tokens=["<|endoftext|>", "<pad>"],
                                                        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tok.decoder = decoders.ByteLevel()
    save(tok, f"{folder}/trained.json")
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(),
                                           normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tok.train_from_iterator([text], trainers.UnigramTrainer(vocab_size=600, show_progress=False,
                                                            special_tokens=["<pad>", "</s>", "<unk>"],
                                                            unk_token="<unk>"))
    save(tok, f"{folder}/trained_unigram.json")


def save(tok, path):
    with open(path, "w") as f: json.dump(json.loads(tok.to_str()), f, ensure_ascii=False, separators=(",", ":"))


def write(folder, only):
    """Writes the tokenizer files. Returns their names in the order of the cases."""
    made = {"llama3.json": llama3, "qwen2.json": qwen2, "harmony.json": harmony, "sentencepiece.json": sentencepiece,
            "metaspace.json": lambda: metaspace("first", False), "fuse_unk.json": lambda: metaspace("always", True),
            "splits.json": splits, "prefix.json": prefix, "bert.json": bert, "wordlevel.json": word_level,
            "unigram.json": lambda: unigram(folder), "first.json": lambda: first(folder)}
    names = [*made, "gpt2", *SENTENCEPIECE, "gpt2.tiktoken"]
    wanted = [name for name in names if not only or name in only]
    for name, options in SENTENCEPIECE.items():
        if name in wanted: train_sentencepiece(f"{folder}/{name}", **options)
    if "gpt2" in wanted: gpt2_files(folder)
    if "gpt2.tiktoken" in wanted: tiktoken(folder)
    if not only or "trained.json" in only: trained(folder)
    for name in made:
        if name not in wanted: continue
        save(made[name](), f"{folder}/{name}")
    return names, wanted


def cases(name, theirs, added):
    rng = random.Random(name)
    short = [(p.encode(), f) for p in ["", *PIECES, *added] for f in (0,)]
    short += [(f"a {t} b{t}{t}  {t}\n{t}x _{t}".encode(), f) for t in added[:12] for f in (0, AS_TEXT, SKIP_SPECIAL)]
    short += [(text(rng, added), rng.choice([0, ADD_SPECIAL, AS_TEXT, SKIP_SPECIAL])) for _ in range(20)]
    short += [(" cafe\u0301 Cafe\u0301 ete\u0301 szqword zqword. a_zqword zqword\u200d \u0130\u03a3".encode(), 0),
              ("one two\nthree\r\n\r\n  four\u2028five\0six".encode(), ADD_SPECIAL)]
    short += [(t.encode(), 0) for t in ("xa\nbc axb buzz zoo", "\u2460\u0300\u1df9\u0323a\u1ace\u0334",
                                        "aa\u000baaa? \u4e2d\u3042\u0436 \u0436", "\U00031350 \U0001fae8!")]
    short += [(b, 0) for b in (b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x91", b"\xf4\x90\x80\x80",
                               b"a\xc0\xafb\xf8\x88\x80\x80\x80c", b"\xe0\x9f\xbf\xe0\xa0")]
    # Texts with a single line of one megabyte: one word, blanks, blanks before a word, and letters that never merge.
    long = [(b"a", 1 << 20), (b" ", 1 << 20), ("\u4e2d".encode(), 1 << 18), (b"the quick 'S 1234 ", 1 << 16),
            (b"!?", 1 << 19), ("\u0301\u0323".encode(), 1 << 16), (b"0", 1 << 18)]
    # the other libraries have no flags
    if not name.endswith(("json", "gpt2")): short, long = [(r, 0) for r, f in [*short, (b"x___ the-----", 0)]
                                                           if f in (0, ADD_SPECIAL)], []
    for raw, flags, times in [(r, f, 1) for r, f in short] + [(r, 0, t) for r, t in long]:
        ids, decoded = theirs(raw * times, flags)
        case = {"file": name, "flags": flags, "text": base64.b64encode(raw).decode(), "times": times, "count": len(ids),
                "fnv": fnv(b"".join(i.to_bytes(4, "little") for i in ids))}
        if times == 1: case.update(ids=ids, decoded=base64.b64encode(decoded.encode()).decode())
        offsets = theirs.offsets(raw, ids) if times == 1 and hasattr(theirs, "offsets") else None
        if offsets is not None: case["offsets"] = offsets
        if times == 1 and hasattr(theirs, "spans"): case["spans"] = [at for span in theirs.spans(raw, flags)
                                                                     for at in span]
        yield case


def regexes():
    """Regexes for which Oniguruma and PCRE2 differ or nearly differ, with the pieces and a note of which match (or only
    the matches, if other text is removed)."""
    patterns = [r"(?m:a.b)", r"a.b", r"(?=z)", r"x*", r"\w{2,3}+", r"a{2}?", r"a{,2}b", r"a{,}", r"^.", r".$", r"\Ab",
                r"c\z", r"\bb", r"\Bz", r"[\w-]+", r"[\s-]", r"[a-c-e]", r"(?m)a.b", r"[]a]",
                r"[^]a]+", r"[\]\[]", r" ?[^(\s|[.,!?\u3002])]+", r"[[ab]x[\s1-3]z]+", r"\p{Han}+", r"\p{^Han}",
                r"\P{^Han}", r"\p{Hiragana}", r"\s+(?!\S)", r"\S+", r"[\S]", r"\d", r"\D+", r"[^\d]", r"\W+", r"[^\w]",
                r"\u4e2d", r"\x{4e2d}", r"\x61", r"[\x61-b\u3042]", r"\v", r"\é", r"(?i:'S|x')", r"(?i)X", r"(a)\1",
                r"(?<=a)b", r"(?<!a)b", r"(?>a+)a", r"a++b", r"a\{|}", r"{|a{x", r"é{2}", r"é{2,3}+", r"é{2}+b",
                r"\{2}+", r"12{2}+", r"(ab){2}+", r"\p{Lu}|\p{So}|\p{Mn}|\p{Alphabetic}1", r"a|", r"\.|\$|\#| #"]
    subjects = ["xa\nbc axb buzz zoo", "aaaaab aab ab{ b} a{x {", "\u4e2d\u6587\u3042\u3005\u30fc \u0436 \u0663 \u00b2",
                "  \t \n\n \u180e\u200b\u00a0\u0085x  ", "]-[^a-b", "'s 'S ss \u00df '\u017f xX",
                "\u00e9\u00e9 e\u0301\u000b A\U0001f600\U00031350\U0001fae8.$# #", "\u200d_a\u24b61\u00aa", "abababab",
                "12222 \u00e9\u00e9\u00e9\u00e9b"]
    for pattern in patterns:
        for subject in subjects:
            every = split(Regex(pattern)).pre_tokenize_str(subject)
            matches = split(Regex(pattern), "removed", True).pre_tokenize_str(subject)
            yield {"pattern": pattern, "text": subject, "pieces": [p for p, _ in every],
                   "matches": [p for p, _ in matches]}


def main(folder, only):
    os.makedirs(folder, exist_ok=True)
    old, found = {}, {}
    if only:
        with open(f"{folder}/cases.json") as f:
            for c in json.load(f)["cases"]: old.setdefault(c["file"], []).append(c)
    names, wanted = write(folder, only)
    for name in wanted:
        _, run, added = original(f"{folder}/{name}" if name != "gpt2"
                                 else f"{folder}/gpt2/vocab.json,{folder}/gpt2/merges.txt")
        found[name] = [*cases(name, run, added)]
    every = [c for name in names for c in found.get(name, old.get(name, []))]
    with open(f"{folder}/cases.json", "w") as f:
        f.write(json.dumps({"tokenizers": __version__, "python": platform.python_version()})[:-1] + ', "cases": [\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in every) + '\n], "regex": [\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":"), ensure_ascii=False) for c in regexes()) + "\n]}\n")


main(options.folder, options.only)
