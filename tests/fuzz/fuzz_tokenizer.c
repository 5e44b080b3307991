/* Hugging Face tokenizers. The input is a tokenizer.json; if it is accepted, the target encodes and decodes
 * awkward text with it. */
#include "fuzz/tokenizer_file.h"

bool fuzz_one(const uint8_t *bytes, size_t n) {
    return fuzz_tokenizer_file("HuggingFaceTokenizer", "tokenizer.json", bytes, n);
}

void fuzz_seeds(Corpus *c) { corpus_add_glob(c, "tests/fuzz/corpus/tokenizer-*.json"); }
