/* SentencePiece models. */
#include "fuzz/tokenizer_file.h"

bool fuzz_one(const uint8_t *bytes, size_t n) {
    return fuzz_tokenizer_file("SentencePieceTokenizer", "tokenizer.model", bytes, n);
}

void fuzz_seeds(Corpus *c) { corpus_add_glob(c, "tests/fuzz/corpus/spm-*.model"); }
