"""Texts that tokenizers often process incorrectly, and the results of the original libraries for these texts. They
contain emoji sequences, combining marks, CJK, right-to-left text, NULs, invalid UTF-8, line ends, blanks, contractions
in unusual case, digits, and the texts of tokens."""
import base64
import json

import tokenizers

ADD_SPECIAL, AS_TEXT, SKIP_SPECIAL = 1, 2, 4
CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""

RANGES = [(0, 0x7F), (0x20, 0x7E), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF),
          (0x900, 0x97F), (0xE00, 0xE7F),
          (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x24FF), (0x2500, 0x2BFF), (0x3000, 0x30FF),
          (0x4E00, 0x9FFF),
          (0xAC00, 0xD7A3), (0xF900, 0xFDFF), (0xFE00, 0xFFFF), (0x10000, 0x1FFFF), (0x1F1E6, 0x1F1FF),
          (0x1F300, 0x1FAFF),
          (0x20000, 0x323AF), (0xE0000, 0xE01EF), (0x110000 - 4, 0x10FFFF)]
PIECES = ["'s", "'S", "'RE", "'ll", "'\u017f", "don't", "I'M", " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", "\u00a0",
          "\u2028", "\u2029", "\u0085", "\u180e", "\u200b", "\u200d", "\ufeff", "\u3000", "\0", "123", "1234567",
          "\u0663\u0664", "\u00bd", "\u2167", "the", " the", "Hello",
          "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f1e9\U0001f1ea",
          "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f44d\U0001f3fd", "e\u0301", "\u00e9", "A\u030a", "\u212b",
          "\uac00", "\u1100\u1161\u11a8", "\ufb01", "\u0130", "\u03a3\u03c2", "\u4e2d\u6587",
          "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
          "\u05e2\u05d1\u05e8\u05d9\u05ea", "\u0e44\u0e17\u0e22", "!!!", "...", "--", "://", "_", "a_b", "\u2581",
          "\u0120", "<0x0A>", "$", "\u20ac"]


def text(rng, added):
    out = []
    for _ in range(rng.choice([1, 2, 3, 5, 10, 30])):
        kind = rng.random()
        if kind < 0.45: out.append(rng.choice(PIECES))
        elif kind < 0.55 and added: out.append(rng.choice(added))
        elif kind < 0.6: out.append(rng.choice(PIECES + [" "]) * rng.randrange(1, 40))
        else:
            low, high = rng.choice(RANGES)
            out.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randrange(1, 8))))
    raw = "".join(c for c in "".join(out) if not 0xD800 <= ord(c) < 0xE000).encode()
    if rng.random() < 0.1:  # damages the text: truncates it, or changes bytes
        raw = bytearray(raw[rng.randrange(len(raw) + 1):])
        for _ in range(rng.randrange(4)):
            if raw: raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def theirs(tok, raw, flags):
    s = raw.decode("utf-8", errors="replace")
    tok.encode_special_tokens = bool(flags & AS_TEXT)
    ids = tok.encode(s, add_special_tokens=bool(flags & ADD_SPECIAL)).ids
    return ids, tok.decode(ids, skip_special_tokens=bool(flags & SKIP_SPECIAL))


def original(path):
    """Returns three values for a tokenizer file of any kind: the arguments of tests/compare/tokenize, a function that
    tokenizes with the original library, and the special tokens."""
    if path.endswith(".model"):
        import sentencepiece
        model = sentencepiece.SentencePieceProcessor(model_file=path)
        def run(raw, flags):
            ids = model.encode_as_ids(raw.decode("utf-8", errors="replace"))
            return ids, model.decode_ids(ids)
        def offsets(raw, ids):
            # this version counts bytes; Megatron-LM and older versions count characters
            proto = model.decode(ids, return_type="proto")
            return [len(proto.text.encode()[:piece.begin].decode()) for piece in proto.pieces]
        run.offsets = offsets
        run.spans = lambda raw, flags: spm_spans(model, raw.decode("utf-8", errors="replace"))
        return ["SentencePieceTokenizer", path], run, [model.id_to_piece(i) for i in range(8)]
    if path.endswith(".tiktoken"):
        import tiktoken
        with open(path) as f: ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in f}
        encoding = tiktoken.Encoding(name="x", pat_str=CL100K, mergeable_ranks=ranks,
                                     special_tokens={"<|endoftext|>": len(ranks)})
        def run(raw, flags):
            ids = encoding.encode(raw.decode("utf-8", errors="replace"), allowed_special="all")
            return ids, encoding.decode(ids)
        run.offsets = lambda raw, ids: encoding.decode_with_offsets(ids)[1]
        return ["TikTokenizer", path, "cl100k"], run, ["<|endoftext|>"]
    pair = path.split(",")
    tok = gpt2(*pair) if len(pair) == 2 else tokenizers.Tokenizer.from_file(path)
    tok.no_truncation(), tok.no_padding()
    added = [t.content for t in tok.get_added_tokens_decoder().values()]
    def run(raw, flags): return theirs(tok, raw, flags)
    run.spans = lambda raw, flags: hf_spans(tok, raw.decode("utf-8", errors="replace"), flags)
    parts = json.loads(tok.to_str())
    is_trimmed = '"trim_offsets": true' in json.dumps(parts["post_processor"])
    if parts["decoder"] and parts["decoder"]["type"] == "ByteLevel" and not is_trimmed:
        run.offsets = lambda raw, ids: begins(tok, raw, ids)
    return ["GPT2BPETokenizer", "", *pair] if len(pair) == 2 else ["HuggingFaceTokenizer", path], run, added


def hf_spans(tok, text, flags):
    """Returns the spans of characters that the tokens represent."""
    tok.encode_special_tokens = bool(flags & AS_TEXT)
    return tok.encode(text, add_special_tokens=bool(flags & ADD_SPECIAL)).offsets


def spm_spans(model, text):
    proto = model.encode(text, return_type="proto")  # spans count bytes
    characters = lambda at: len(proto.text.encode()[:at].decode())
    return [(characters(piece.begin), characters(piece.end)) for piece in proto.pieces]


def begins(tok, raw, ids):
    """Returns the index of the character at which each token begins. Returns nothing if encoding results in other ids,
    or if the ids decode to another text."""
    s = raw.decode("utf-8", errors="replace")
    tok.encode_special_tokens = False
    encoding = tok.encode(s, add_special_tokens=False)
    is_whole = encoding.ids == ids and tok.decode(ids, skip_special_tokens=False) == s
    return [begin for begin, _ in encoding.offsets] if is_whole else None


def gpt2(vocab, merges):
    tok = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab, merges))
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tokenizers.decoders.ByteLevel()
    tok.add_special_tokens(["<|endoftext|>"])
    return tok


def fnv(data):
    """Returns the 64-bit FNV-1a hash."""
    h = 0xCBF29CE484222325
    for byte in data: h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def matches(pattern, characters):
    """Returns the characters that the library's regex matches."""
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "removed", invert=True)
    return [ord(x) for i in range(0, len(characters), 4096)
            for piece, _ in split.pre_tokenize_str("".join(map(chr, characters[i:i + 4096]))) for x in piece]
