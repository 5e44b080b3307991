#!/usr/bin/env python3
"""Writes tests/data/tokenizer/folders.json: small folders of Hugging Face tokenizers, and the results of transformers'
AutoTokenizer for these folders.

usage: tools/oracle/tokenizer_folders.py tests/data/tokenizer

"bases" contains the files of vocabularies. A case adds or replaces files of a base: text, JSON, {"copy": FILE of the
folder}, {"base64": BYTES}, or null to remove a file. A case has the ids of the base's texts, without and with special
tokens, and the ids and types of the first two texts as a pair. It also has the length (largest id + 1), the ids that a
decoder skips as special, and the ids of eos, bos and pad (null if there is none). In a case with "error", transformers
silently uses a different id for a token than a file does. Isotron must refuse such a case."""
import base64, json, os, pathlib, shutil, tempfile

from cli import Command

command = Command(__doc__, "transformers tokenizers sentencepiece google.protobuf")
command.add_argument("folder", type=pathlib.Path)
options = command.parse_args()

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="critical")
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = "the lower Lowest newer caf\u00e9 caf\u00e9s we're 12345 running runner   end end\nof user tool system text, texts. " * 3
TEXTS = ["the <x>lower</x> caf\u00e9", "<x> Lowest <y>\n<z> end", " newer  <|end|>caf\u00e9s",
         "we're <sep> 12345 <UNUSED>running", "<extra_id_0> of\u2581<x>user <mask> z\u4e2d", "</s>the<s> <pad>",
         "C++ a.b CCacb(x)x^$|", ""]

SPACES = ["a     b", "<x>    a", "a    <x>", "a   <x>   b c", "<x>  <x>", "     ", "<x>     b", "c<x>b  b"]


def token(text, **flags):
    return {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": True, **flags}


def saved(tok): return json.loads(tok.to_str())


def train(tok, trainer): tok.train_from_iterator([WORDS], trainer(show_progress=False)); return tok


def byte_level():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    train(tok, lambda **o: trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"],
                                               initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), **o))
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return saved(tok)


def roberta():
    tok = byte_level()
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    tok["model"]["vocab"] = {t: i for i, t in enumerate([*names, *[t for t in tok["model"]["vocab"]
                                                                   if t != "<|endoftext|>"], "<mask>"])}
    ids = tok["model"]["vocab"]
    tok["added_tokens"] = [{"id": ids[t], **token(t, normalized=True, lstrip=t == "<mask>")}
                           for t in [*names, "<mask>"]]
    tok["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True,
                             "add_prefix_space": False}
    return tok


def bert():
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer, tok.decoder = normalizers.BertNormalizer(), decoders.WordPiece()
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocab = [*names, *"abcdefghilmnorstuvwxyLéz12345<>|/'.,_", *("##" + c for c in "abcdefghilmnorstuvwxyeé12345"),
             "the", "lower", "Low", "##est", "##er", "new", "run", "##ning", "café", "cafe", "tool"]
    tok.model = models.WordPiece({t: i for i, t in enumerate(dict.fromkeys(vocab))}, unk_token="[UNK]")
    tok.add_special_tokens(names)
    tok.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
                                                       special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return saved(tok)


def sentencepiece():
    """A tokenizer.json like Llama-2's: byte fallback after a Prepend."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    train(tok, lambda **o: trainers.BpeTrainer(vocab_size=320,
                                               special_tokens=["<unk>", "<s>", "</s>",
                                                               *(f"<0x{b:02X}>" for b in range(256))], **o))
    made = saved(tok)
    made.update(pre_tokenizer=None, added_tokens=made["added_tokens"][:3])
    tok = Tokenizer.from_str(json.dumps(made))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                       special_tokens=[("<s>", 1)])
    return saved(tok)


def gemma():
    made = sentencepiece()
    vocab = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4,
             **{t: i + 5 for i, t in enumerate(t for t in made["model"]["vocab"] if t not in ("<unk>", "<s>", "</s>"))}}
    made["model"]["vocab"] = vocab
    made["added_tokens"] = [{"id": i, **token(t)} for t, i in vocab.items() if i < 5]
    made["post_processor"] = {"type": "TemplateProcessing",
                              "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}},
                                         {"Sequence": {"id": "A", "type_id": 0}}],
                              "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                              "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}}
    made["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    return made


def unigram(names, unk):
    pieces = [(n, 0.0) for n in names] + [("\u2581", -2.0),
                                          *((c, -6.0 - i / 8)
                                            for i, c in enumerate("abcdefghilmnorstuvwxyL\u00e912345<>|/_.,'")),
                                          *((p, -3.0 - i / 4)
                                            for i, p in enumerate(["\u2581the", "\u2581low", "er", "\u2581new",
                                                                   "\u2581caf", "est", "run", "ning",
                                                                   "\u2581end", "user"]))]
    tok = Tokenizer(models.Unigram(pieces, unk_id=unk))
    tok.pre_tokenizer = tok.decoder = None
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tok.add_special_tokens(list(names))
    return saved(tok)


def files(tok): return {"tokenizer.json": tok}


def tekken(tok, numbered):
    """Mistral's format, in which special tokens have the first ids, followed by the ranks of bytes and merges."""
    byte = {c: b for b, c in zip([*range(33, 127), *range(161, 173), *range(174, 256)],
                                 map(chr, [*range(33, 127), *range(161, 173), *range(174, 256)]))}
    byte.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in byte.values())})
    pieces = sorted((bytes(byte[c] for c in t) for t in tok["model"]["vocab"] if t != "<|endoftext|>"),
                    key=lambda p: (len(p) > 1, p if len(p) == 1 else b""))
    names = ["<unk>", "<s>", "</s>", "<x>", "<pad>"]
    return {"config": {"pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                       "num_vocab_tokens": 400, "version": "v3", "default_num_special_tokens": len(names) + numbered,
                       "default_vocab_size": len(pieces) + len(names) + numbered - 3},
            "vocab": [{"rank": i, "token_bytes": base64.b64encode(p).decode(),
                       "token_str": p.decode() if p.isalpha() else None} for i, p in enumerate(pieces)],
            "special_tokens": [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(names)]}


def signs():
    """A SentencePiece model whose user-defined pieces contain special characters of regular expressions."""
    from sentencepiece import sentencepiece_model_pb2 as pb
    model = pb.ModelProto()
    model.trainer_spec.model_type, model.normalizer_spec.name = 2, "identity"
    for i, text in enumerate(["<unk>", "<s>", "</s>", "C++", "a.b", "(x)", "^", "$|", "\u2581", "\u2581C",
                              *"abcxC+.()$|", "bC"]):
        model.pieces.add(piece=text, score=-float(i), type=2 if not i else 3 if i < 3 else 4 if i < 8 else 1)
    return base64.b64encode(model.SerializeToString()).decode()


def spaces(first, second, text):
    """A tokenizer with the added tokens <x> and `text`, where `text` begins with a space. first, second: their flags
    (1: lstrip, 2: rstrip)."""
    tok = Tokenizer(models.WordLevel({"u": 0, "a": 1, "b": 2, "c": 3, " ": 4}, unk_token="u"))
    tok.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tok.add_tokens([AddedToken(t, normalized=False, lstrip=bool(f & 1), rstrip=bool(f & 2))
                    for t, f in (("<x>", first), (text, second))])
    return files(saved(tok))


def bases():
    gpt2, words = byte_level(), bert()
    merges = "#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in gpt2["model"]["merges"])
    t5 = unigram(["<pad>", "</s>", "<unk>"], 2)
    t5["post_processor"] = {"type": "TemplateProcessing",
                            "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                       {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}
    return {"gpt2": files(gpt2), "roberta": files(roberta()), "bert": files(words), "llama": files(sentencepiece()),
            "gemma": files(gemma()), "t5": files(t5), "xlmr": files(unigram(["<s>", "<pad>", "</s>", "<unk>"], 3)),
            "albert": files(unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], 1)),
            "slow gpt2": {"vocab.json": gpt2["model"]["vocab"], "merges.txt": merges},
            "slow bert": {"vocab.txt": "".join(t + "\n" for t in words["model"]["vocab"])},
            "tekken": {"tekken.json": tekken(gpt2, 2)}, "bpe.model": {"tokenizer.model": {"copy": "bpe.model"}},
            "unigram.model": {"spiece.model": {"copy": "unigram.model"}},
            "signs.model": {"tokenizer.model": {"base64": signs()}}}


FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
X = {"content": "<x>", "lstrip": True, "rstrip": True, "normalized": True, "single_word": False, "__type": "AddedToken"}


def config(**keys): return {"tokenizer_config.json": {**FAST, **keys}}


def cases(made):
    """Yields the name, the base, the files and, for a case that must be refused, the message."""
    size = 300
    for first in range(4):
        for second in 0, 2, 3: yield f"stripped space {first} {second}", None, spaces(first, second, "  ")
        for second in 0, 1, 2, 3: yield f"stripped space and b {first} {second}", None, spaces(first, second, " b")
    yield "nothing else", "gpt2", {}
    yield "class only", "gpt2", config()
    # Tokens of added_tokens_decoder that are new, in the vocabulary, or already added, that have each flag, that follow
    # a gap, or that have an id in use.
    yield "decoder", "gpt2", config(added_tokens_decoder={"300": token("<x>"),
                                                          "301": token("<y>", special=False, normalized=True)})
    for flag in "lstrip", "rstrip", "single_word", "normalized": yield f"decoder with {flag}", "gpt2", config(added_tokens_decoder={"300": token("<x>", **{flag: True})})
    yield "decoder that changes flags", "gpt2", config(added_tokens_decoder={"0": token("<|endoftext|>", rstrip=True,
                                                                                        special=False)},
                                                       eos_token="<|endoftext|>")
    yield "decoder of a special token as another", "llama", config(added_tokens_decoder={"1": token("<s>", special=False), "2": token("</s>", lstrip=True)})
    yield "decoder out of order", "gpt2", config(added_tokens_decoder={"301": token("<x>"), "300": token("<y>")})
    yield "decoder with few keys", "gpt2", config(added_tokens_decoder={"300": {"content": "<x>"},
                                                                        "301": {"content": "<y>", "special": True}})
    # A token whose flags are missing is normalized unless it is special: <X> matches "<x>" in lower case, <Y> does not.
    few = [{"content": "<X>"}, {"content": "<Y>", "special": True}]
    end = len(made["bert"]["tokenizer.json"]["model"]["vocab"])
    decoder = {str(end + i): t for i, t in enumerate(few)}
    yield "decoder with few keys, in lower case", "bert", config(added_tokens_decoder=decoder)
    objects = [{**t, "__type": "AddedToken"} for t in few]
    yield "additional objects with few keys", "bert", config(additional_special_tokens=objects)
    yield "names with few keys", "bert", config(image_token=objects[0], eos_token=objects[1])
    yield "added_tokens.json in lower case", "bert", {**config(eos_token="<Y>"),
                                                      "added_tokens.json": {"<X>": end, "<Y>": end + 1}}
    yield "decoder of a token of the vocabulary", "gpt2", lambda b: config(added_tokens_decoder={str(b["tokenizer.json"]["model"]["vocab"]["er"]): token("er")})
    yield "decoder with a gap", "gpt2", config(added_tokens_decoder={"300": token("<x>"), "310": token("<y>")}), "<y>"
    yield "decoder with a taken id", "gpt2", config(added_tokens_decoder={"5": token("<x>")}), "<x>"
    yield "decoder against tokenizer.json", "gpt2", config(added_tokens_decoder={"7": token("<|endoftext|>")}), "<|endoftext|>"
    yield "decoder hides the other files", "gpt2", {**config(added_tokens_decoder={"300": token("<x>")}),
                                                    "added_tokens.json": {"<y>": 301},
                                                    "special_tokens_map.json": {"eos_token": "<z>"}}
    # Named tokens: a text or an object, known or new, or null.
    yield "eos in the vocabulary", "gpt2", config(eos_token="er")
    yield "eos is new", "gpt2", config(eos_token="<|end|>", pad_token="<pad>", bos_token=None)
    yield "names in one order", "gpt2", config(mask_token="<mask>", cls_token="<x>", pad_token="<pad>",
                                               sep_token="<sep>", unk_token="<y>", eos_token="<|end|>", bos_token="<s>")
    yield "objects", "gpt2", config(eos_token=X,
                                    pad_token={**X, "content": "<pad>", "normalized": False, "special": True})
    yield "object of a declared token", "gpt2", config(eos_token=X, added_tokens_decoder={"300": token("<x>")})
    yield "additional", "gpt2", config(additional_special_tokens=["<x>", "<y>", "er"])
    yield "additional objects", "gpt2", config(additional_special_tokens=[X, "<y>"])
    yield "extra list wins", "gpt2", config(additional_special_tokens=["<x>"], extra_special_tokens=["<y>"])
    yield "extra list is empty", "gpt2", config(additional_special_tokens=["<x>"], extra_special_tokens=[])
    yield "extra names", "gpt2", config(extra_special_tokens={"image_token": "<x>", "tool": "<y>"})
    yield "other names", "gpt2", config(image_token="<x>", boi_token="<y>", eos_token="<|end|>", add_bos_token=True,
                                        extra_special_tokens=["<z>"])
    # added_tokens.json and special_tokens_map.json.
    yield "added_tokens.json", "gpt2", {**config(), "added_tokens.json": {"<y>": 301, "<x>": 300}}
    yield "added_tokens.json alone", "gpt2", {"added_tokens.json": {"<x>": 300}}
    yield "added_tokens.json of named tokens", "gpt2", {**config(eos_token="<y>", additional_special_tokens=["<x>"]),
                                                        "added_tokens.json": {"<y>": 300, "<x>": 301, "<z>": 302}}
    yield "added_tokens.json with a gap", "gpt2", {**config(), "added_tokens.json": {"<x>": 300, "<y>": 400}}, "<y>"
    yield "added_tokens.json with a taken id", "gpt2", {**config(), "added_tokens.json": {"<x>": 9}}, "<x>"
    yield "special_tokens_map.json", "gpt2", {**config(eos_token="<x>", pad_token="<z>"),
                                              "special_tokens_map.json": {"eos_token": "<y>",
                                                                          "bos_token": {**token("<s>"), "lstrip": True},
                                                                          "additional_special_tokens": ["<sep>"]}}
    yield "special_tokens_map.json alone", "gpt2", {"special_tokens_map.json": {"eos_token": {"content": "<x>",
                                                                                              "lstrip": False,
                                                                                              "normalized": True,
                                                                                              "rstrip": True,
                                                                                              "single_word": False}}}
    yield "both lists of others", "gpt2", {**config(extra_special_tokens=["<x>"]),
                                           "special_tokens_map.json": {"extra_special_tokens": ["<y>", "<x>"]}}
    yield "both maps", "gpt2", {"special_tokens_map.json": {"eos_token": "<x>"},
                                "added_tokens.json": {"<x>": 300, "<y>": 301}}
    yield "added_tokens.json of a named object", "llama", {**config(pad_token={**X, "content": "<pad>"}),
                                                           "added_tokens.json": {"<pad>": 320}}
    named = {"eos_token": "<x>",
             "added_tokens_decoder": {"300": {"content": "<x>", "special": False}, "301": token("<y>", special=False)}}
    yield "a named token is special", "gpt2", config(split_special_tokens=True, **named)
    yield "a named object is special, so not normalized", "llama", config(sep_token={"content": "<sep>",
                                                                                     "__type": "AddedToken"},
                                                                          mask_token={"content": "<mask>",
                                                                                      "lstrip": True,
                                                                                      "__type": "AddedToken"})
    yield "numbers of Python", "gpt2", {"tokenizer_config.json": '{"model_max_length": '
                                        '1000000000000000019884624838656, "x": [NaN, -Infinity, 1e999, '
                                        '-9223372036854775809], "eos_token": "Infinity NaN 1e999"}',
                                        "config.json": '{"model_type": "mamba2", "time_step_limit": [0.0, Infinity]}'}
    yield "keys without effect, no post_processor", "xlmr", config(add_bos_token=True, add_eos_token=True,
                                                                   bos_token="<s>", eos_token="</s>")
    yield "keys without effect", "gpt2", config(add_prefix_space=True, do_lower_case=True, strip_accents=True,
                                                add_bos_token=True, bos_token="<s>", model_max_length=5)
    harmony = ["<|startoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>",
               "<|call|>", "<|reserved_200013|>"]
    yield "as GPT-OSS", "gpt2", {"config.json": {"model_type": "gpt_oss"},
                                 **config(added_tokens_decoder={"0": token("<|endoftext|>"),
                                                                **{str(size + i): token(t)
                                                                   for i, t in enumerate(harmony)}},
                                          bos_token="<|startoftext|>", eos_token="<|return|>",
                                          pad_token="<|endoftext|>", clean_up_tokenization_spaces=False,
                                          model_input_names=["input_ids", "attention_mask"])}
    # Classes that do not read tokenizer.json, but build their own tokenizer.
    for name, base, keys in [
        ("GPT2Tokenizer", "gpt2", {}), ("GPT2TokenizerFast", "gpt2", {"add_prefix_space": True}),
        ("GPT2Tokenizer", "gpt2", {"eos_token": "<|end|>", "unk_token": None, "bos_token": "<s>"}),
        ("CodeGenTokenizer", "gpt2",
         {"added_tokens_decoder": {"0": token("<|endoftext|>"), "300": token("  ", special=False, normalized=True),
                                   "301": token("<x>", special=False)}}),
        ("Qwen2Tokenizer", "gpt2", {}),
        ("Qwen2TokenizerFast", "gpt2",
         {"added_tokens_decoder": {"0": token("<|endoftext|>", rstrip=True), "300": token("<x>", lstrip=True)},
          "additional_special_tokens": ["<x>", "<y>"], "bos_token": None}),
        ("GPTNeoXTokenizer", "gpt2", {}), ("GPTNeoXTokenizer", "roberta", {"add_bos_token": True}),
        ("CohereTokenizer", "gpt2", {}), ("LlamaTokenizer", "gpt2", {"eos_token": "<|endoftext|>"}),
        ("RobertaTokenizer", "roberta", {}),
        ("RobertaTokenizer", "roberta", {"add_prefix_space": True, "trim_offsets": False,
                                         "mask_token": {**token("<mask>", lstrip=True), "__type": "AddedToken"}}),
        ("RobertaTokenizer", "roberta", {"cls_token": "<x>", "sep_token": "<y>"}), ("BartTokenizer", "roberta", {}),
        ("LongformerTokenizer", "roberta", {}),
        *(("BertTokenizer", "bert", {"do_lower_case": lower, "strip_accents": accents}) for lower in (True, False)
          for accents in (None, True, False)),
        ("BertTokenizer", "bert",
         {"tokenize_chinese_chars": False,
          "added_tokens_decoder": {str(i): token(t)
                                   for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}}),
        ("BertTokenizerFast", "bert", {"cls_token": "<x>", "additional_special_tokens": ["<y>"]}),
        ("DistilBertTokenizer", "bert", {"do_lower_case": False}),
        ("ElectraTokenizer", "bert", {"do_lower_case": False}),
        ("PreTrainedTokenizerFast", "bert", {"do_lower_case": False}),
        ("LlamaTokenizer", "llama", {}), ("LlamaTokenizer", "llama", {"legacy": True, "add_bos_token": True}),
        ("LlamaTokenizerFast", "llama", {"legacy": False, "add_prefix_space": False}),
        ("LlamaTokenizer", "llama", {"pad_token": "<pad>", "eos_token": {**X, "content": "</s>"}}),
        ("GemmaTokenizer", "gemma", {}),
        ("GemmaTokenizerFast", "gemma", {"additional_special_tokens": ["<x>"], "add_eos_token": True}),
        ("T5Tokenizer", "t5", {}),
        ("T5TokenizerFast", "t5", {"extra_ids": 2, "additional_special_tokens": ["<extra_id_0>", "<extra_id_1>"]}),
        ("T5Tokenizer", "t5", {"extra_ids": 1}), ("T5Tokenizer", "t5", {"additional_special_tokens": []}),
        ("T5Tokenizer", "t5", {"extra_special_tokens": {}}),
        ("XLMRobertaTokenizer", "xlmr", {}), ("XLMRobertaTokenizer", "xlmr", {"add_prefix_space": None}),
        ("AlbertTokenizer", "albert", {"add_prefix_space": None}),
        ("XLMRobertaTokenizer", "xlmr",
         {"add_prefix_space": False, "mask_token": {**X, "content": "<mask>", "normalized": False}}),
        ("AlbertTokenizer", "albert", {}),
        ("AlbertTokenizer", "albert", {"do_lower_case": False, "keep_accents": True}),
        ("UnheardOfTokenizer", "gpt2", {"eos_token": "<x>"}),
    ]: yield f"{name} {json.dumps(keys)[:80]}", base, {"tokenizer_config.json": {"tokenizer_class": name, **keys}}
    for one, two in ("<x>", {**X, "single_word": True}), ({**X, "single_word": True},
                                                          "<x>"): yield "a text and an object of one token", "gpt2", config(bos_token=one, pad_token=two)
    yield "class of a model type", "bert", {"config.json": {"model_type": "bert"}}
    yield "class of config.json", "bert", {"config.json": {"model_type": "llama", "tokenizer_class": "BertTokenizer"}}
    yield "type phi3 has no class", "llama", {"config.json": {"model_type": "phi3"},
                                              "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer",
                                                                        "added_tokens_decoder": {"320": token("<|end|>", rstrip=True)}, "eos_token": "<|end|>"}}
    yield "type llama", "llama", {"config.json": {"model_type": "llama"},
                                  "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"}}
    yield "type mistral with tekken.json", "llama", {"config.json": {"model_type": "mistral"},
                                                     "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"},
                                                     "tekken.json": {}}
    yield "type qwen2 of another class", "gpt2", {"config.json": {"model_type": "qwen2"}, **config()}
    yield "type gpt2 of another class", "gpt2", {"config.json": {"model_type": "gpt2"}, **config(add_prefix_space=True)}
    yield "ModernBERT", "gpt2", {"config.json": {"model_type": "modernbert"},
                                 **config(cls_token="<x>", sep_token="<y>", mask_token={**X, "content": "<mask>"})}
    # Folders without a tokenizer.json.
    yield "slow Phi", "slow gpt2", {"tokenizer_config.json": {"tokenizer_class": "CodeGenTokenizer",
                                                              "add_prefix_space": False},
                                    "added_tokens.json": {"<x>": 300, "  ": 301, "<y>": 302},
                                    "special_tokens_map.json": {"eos_token": "<|endoftext|>"}}
    yield "slow GPT-2", "slow gpt2", {"config.json": {"model_type": "gpt2"},
                                      "special_tokens_map.json": {"bos_token": "<x>", "eos_token": "<|endoftext|>",
                                                                  "unk_token": "<|endoftext|>"}}
    yield "slow GPT-2 with bos", "slow gpt2", {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer",
                                                                         "add_bos_token": True,
                                                                         "bos_token": {**X, "content": "<s>"},
                                                                         "pad_token": None}}
    yield "slow Qwen2", "slow gpt2", {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer",
                                                                "added_tokens_decoder": {"0": token("<|endoftext|>"),
                                                                                         "300": token("<x>"),
                                                                                         "301": token("<y>", special=False)}, "eos_token": "<x>"}}
    yield "slow BERT", "slow bert", {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer",
                                                               "do_lower_case": False}}
    yield "slow BERT by type", "slow bert", {"config.json": {"model_type": "bert"}, "added_tokens.json": {"<x>": 85},
                                             "special_tokens_map.json": {"mask_token": "[MASK]"}}, "<x>"
    for legacy in True, False: yield f"slow Llama legacy {legacy}", "bpe.model", {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "legacy": legacy, "add_bos_token": True, "add_eos_token": not legacy}, "added_tokens.json": {"<x>": 700, "<pad>": 701}, "special_tokens_map.json": {"pad_token": "<pad>"}}
    for kind, typed in ("type", {"config.json": {"model_type": "granite"}}), ("class", {}):
        yield f"control pieces with other flags, by {kind}", "bpe.model", {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "legacy": None}, "special_tokens_map.json": {"bos_token": {"content": "<s>", "rstrip": True, "normalized": True}}, **typed}
    yield "slow Llama", "bpe.model", {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer",
                                                                "add_bos_token": True, "bos_token": "<s>"}}
    yield "model without a class", "bpe.model", {}
    yield "model of a type without a class", "bpe.model", {"config.json": {"model_type": "mistral"},
                                                           "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "added_tokens_decoder": {"700": token("<x>")}}}
    yield "model with signs", "signs.model", {}
    yield "unigram model without a class", "unigram.model", {"tokenizer.model": {"copy": "unigram.model"},
                                                             "spiece.model": None}
    yield "tekken.json", "tekken", {}
    yield "tekken.json and another id", "tekken", config(added_tokens_decoder={"306": token("<y>")}), "<y>"
    yield "tekken.json of a type", "tekken", {"config.json": {"model_type": "mistral"},
                                              **config(additional_special_tokens=["<y>"], eos_token="</s>")}
    yield "slow T5", "unigram.model", {"tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": 3}}
    yield "slow XLM-R", "unigram.model", {"sentencepiece.bpe.model": {"copy": "suffix.model"}, "spiece.model": None,
                                          "tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}}
    yield "slow ALBERT", "unigram.model", {"tokenizer_config.json": {"tokenizer_class": "AlbertTokenizer",
                                                                     "keep_accents": True, "cls_token": "<s>",
                                                                     "sep_token": "</s>",
                                                                     "added_tokens_decoder": {"700": token("<x>")}}}


def write(folder, dir, contents):
    for name, content in contents.items():
        if content is None: continue
        elif isinstance(content, str): (dir / name).write_text(content)
        elif set(content) == {"copy"}: shutil.copy(folder / content["copy"], dir / name)
        elif set(content) == {"base64"}: (dir / name).write_bytes(base64.b64decode(content["base64"]))
        else: (dir / name).write_text(json.dumps(content))


def expected(dir, texts):
    tok = transformers.AutoTokenizer.from_pretrained(dir)
    ids = [[tok.encode(t, add_special_tokens=special) for t in texts] for special in (False, True)]
    pair = tok(*texts[:2], return_token_type_ids=True)
    return {"size": max(tok.get_vocab().values()) + 1, "eos": tok.eos_token_id, "bos": tok.bos_token_id,
            "pad": tok.pad_token_id, "ids": ids[0], "with": ids[1], "pair": [pair["input_ids"], pair["token_type_ids"]],
            "special": sorted(i for i in tok.added_tokens_decoder if not tok.decode([i], skip_special_tokens=True)),
            **({"spans": [tok(t, return_offsets_mapping=True)["offset_mapping"] for t in texts]}
               if texts is SPACES else {})}, tok


def main(options):
    made, out = bases(), []
    for name, base, more, *error in cases(made):
        more, texts = more(made[base]) if callable(more) else more, TEXTS if base else SPACES
        with tempfile.TemporaryDirectory() as dir:
            dir = pathlib.Path(dir)
            write(options.folder, dir, {**made.get(base, {}), **more})
            answer, tok = expected(dir, texts)
            settings = more.get("tokenizer_config.json", {})
            if isinstance(settings, str): settings = json.loads(settings)
            declared = {**more.get("added_tokens.json", {}),
                        **{t["content"]: int(i) for i, t in settings.get("added_tokens_decoder", {}).items()}}
            wrong = [t for t, i in declared.items() if tok.get_vocab().get(t, i) != i]
            assert wrong == error, (name, wrong, error)
        out.append({"name": name, "base": base, "files": more, **({"error": error[0]} if error else answer)})
    text = json.dumps({"transformers": transformers.__version__, "texts": TEXTS, "spaces": SPACES, "bases": made},
                      ensure_ascii=False)[:-1] + ', "cases": [\n' + ",\n".join(json.dumps(c, ensure_ascii=False)
                                                                               for c in out)
    (options.folder / "folders.json").write_text(text + "\n]}\n")


command.run(main)
