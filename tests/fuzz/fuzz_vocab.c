/* Plain vocabularies: BERT's vocab.txt, and tiktoken's .tiktoken and .vocab.json. */
#include "fuzz/tokenizer_file.h"

bool fuzz_one(const uint8_t *bytes, size_t n) {
    const bool list = n && *bytes == '[', bert = n && *bytes == '#';
    if (bert) return fuzz_tokenizer_file("BertWordPieceLowerCase", "vocab.txt", bytes, n);
    return fuzz_tokenizer_file("TikTokenizer", list ? "a.vocab.json" : "a.tiktoken", bytes, n);
}

void fuzz_seeds(Corpus *c) { corpus_add_glob(c, "tests/fuzz/corpus/vocab-*"); }
