/* Tests the special tokens for masked text, in a BERT vocabulary and in a vocabulary with sentinels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit/err.h"

#include "base/file.h"
#include "tokenizer/special.h"

static Tokenizer *open_json(const char *path) {
    TokenizerConfig c = TOKENIZER_CONFIG_DEFAULT;
    c.type = "HuggingFaceTokenizer", c.model = path;
    Tokenizer *t;
    assert_ok(tokenizer_open(&c, &t));
    return t;
}

TEST(bert_has_masks_and_continuations) {
    Tokenizer *t = open_json("tests/data/tokenizer/bert.json");
    assert_int_equal(tokenizer_special(t, SPECIAL_CLS), tokenizer_token_id(t, "[CLS]"));
    assert_int_equal(tokenizer_special(t, SPECIAL_SEP), tokenizer_token_id(t, "[SEP]"));
    assert_int_equal(tokenizer_special(t, SPECIAL_MASK), tokenizer_token_id(t, "[MASK]"));
    assert_int_equal(tokenizer_special(t, SPECIAL_BOS), tokenizer_token_id(t, "[CLS]"));
    assert_int_equal(tokenizer_special(t, SPECIAL_EOS), tokenizer_token_id(t, "[SEP]"));
    unsigned char *continues;
    assert_ok(tokenizer_continuations(t, &continues));
    assert_true(continues[tokenizer_token_id(t, "##e")]);
    assert_false(continues[tokenizer_token_id(t, "e")]);
    assert_false(continues[tokenizer_token_id(t, "#")]);
    assert_false(continues[tokenizer_token_id(t, "[CLS]")]);
    free(continues);
    static const char WORDS[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n#\n##\n#1\n",
                      PATH[] = "/tmp/isotron-words.txt";
    TokenizerConfig c = TOKENIZER_CONFIG_DEFAULT;
    c.type = "BertWordPieceCase", c.vocab_file = PATH;
    Tokenizer *words;
    assert_ok(file_write_atomic(PATH, WORDS, sizeof WORDS - 1));
    assert_ok(tokenizer_open(&c, &words));
    assert_ok(tokenizer_continuations(words, &continues));
    assert_memory_equal(continues, "\0\0\0\0\0\0\1\0", 8);
    tokenizer_free(words);
    free(continues), remove(PATH);
    int64_t *sentinels;
    assert_int_equal(tokenizer_sentinels(t, &sentinels), 0);
    tokenizer_free(t);
}

/* The end tokens of SentencePiece take precedence over [CLS] and padding. */
TEST(a_sequence_has_its_own_ends) {
    TokenizerConfig c = TOKENIZER_CONFIG_DEFAULT;
    c.type = "SentencePieceTokenizer", c.model = "tests/data/tokenizer/unigram.model";
    Tokenizer *t;
    assert_ok(tokenizer_open(&c, &t));
    assert_int_equal(tokenizer_special(t, SPECIAL_BOS), tokenizer_token_id(t, "<s>"));
    assert_int_equal(tokenizer_special(t, SPECIAL_EOS), tokenizer_token_id(t, "</s>"));
    tokenizer_free(t);
    c.model = "tests/data/tokenizer/bpe.model"; /* like RoBERTa's, it has no [CLS] and [SEP] */
    assert_ok(tokenizer_open(&c, &t));
    assert_int_equal(tokenizer_special(t, SPECIAL_CLS), tokenizer_token_id(t, "<s>"));
    assert_int_equal(tokenizer_special(t, SPECIAL_SEP), tokenizer_token_id(t, "</s>"));
    tokenizer_free(t);
    t = open_json(
        "tests/data/tokenizer/unigram.json"); /* <sep> takes precedence over the end-of-text token */
    assert_int_equal(tokenizer_special(t, SPECIAL_SEP), tokenizer_token_id(t, "<sep>"));
    tokenizer_free(t);
}

/* T5's texts begin with padding. */
TEST(padding_begins_a_text_without_another_token) {
    for (int32_t pad = -1; pad < 5; pad += 5) {
        TokenizerConfig c = TOKENIZER_CONFIG_DEFAULT;
        c.type = "NullTokenizer", c.vocab_size = 9, c.pad_id = pad;
        Tokenizer *t;
        assert_ok(tokenizer_open(&c, &t));
        assert_int_equal(tokenizer_special(t, SPECIAL_BOS), pad);
        tokenizer_free(t);
    }
}

TEST(sentinels_end_at_a_gap) {
    static const char JSON[] =
        "{\"added_tokens\": [], \"model\": {\"type\": \"WordLevel\", \"unk_token\": \"u\", \"vocab\": "
        "{\"u\": 0, \"<extra_id_0>\": 4, \"<extra_id_1>\": 2, \"<extra_id_3>\": 1, \"<mask>\": 3}}}";
    char path[] = "/tmp/isotron-special-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_ok(file_write_all(fd, path, JSON, sizeof JSON - 1));
    Tokenizer *t = open_json(path);
    int64_t *sentinels;
    assert_int_equal(tokenizer_sentinels(t, &sentinels), 2);
    assert_int_equal(sentinels[0], 4);
    assert_int_equal(sentinels[1], 2);
    assert_int_equal(tokenizer_special(t, SPECIAL_MASK), 3);
    assert_int_equal(tokenizer_special(t, SPECIAL_CLS), -1);
    free(sentinels);
    tokenizer_free(t);
    assert_ok(file_remove(path));
}
