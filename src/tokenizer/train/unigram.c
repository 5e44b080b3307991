#include "tokenizer/train/unigram.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tokenizer/model/lattice.h"
#include "tokenizer/train/seeds.h"

static const char UNK[] = "<unk>", METASPACE[] = "\xE2\x96\x81";
static const double SHRINK = 0.75; /* the fraction of pieces that each round keeps */
static const double LEAST_COUNT = 0.5;
static const double UNK_PENALTY = 10;
enum { SEEDS = 1000000, SUB_ITERATIONS = 2 };
/* maximum length of a word in bytes; a lattice needs up to 512 bytes per byte of the word */
enum { LONGEST_WORD = 1 << 22 };

/* Pieces have the same order as in the `tokenizers` library, because the order affects sums and decides ties. Piece 0
 * represents unknown characters. */
typedef struct Trainer {
    const Words *words;
    Seeds seeds;
    int32_t *seed; /* [n], the id of each piece in `seeds` */
    double *scores, *expected;
    int32_t n;
    double least;  /* the minimum score of a piece */
    int32_t limit; /* number of pieces at which pruning ends, 1.1 times the vocabulary size */
    Trie *trie;
    Lattice *lattice;
} Trainer;

Err unigram_words(Words **out) {
    json_t *normalizer =
        json_pack("{s:s,s:[{s:s},{s:s},{s:s,s:{s:s},s:s}]}", "type", "Sequence", "normalizers", "type", "Nmt",
                  "type", "NFKC", "type", "Replace", "pattern", "Regex", " {2,}", "content", " ");
    json_t *pre = json_pack("{s:s,s:s,s:s,s:b}", "type", "Metaspace", "replacement", METASPACE,
                            "prepend_scheme", "always", "split", 1);
    return words_new(normalizer, pre, out);
}

static PieceScores piece_scores(const Trainer *t) { return (PieceScores){t->trie, t->scores}; }

static void set_word(const Trainer *t, int32_t word) {
    size_t n;
    const char *text = words_text(t->words, word, &n);
    lattice_set(t->lattice, piece_scores(t), text, n);
}

/* Updates the trie and the score of unknown characters after the pieces have changed. */
static void use_pieces(Trainer *t) {
    t->least = INFINITY;
    trie_free(t->trie);
    t->trie = trie_new();
    for (int32_t i = 1; i < t->n; i++) {
        size_t n;
        const char *text = vocab_text(t->seeds.texts, t->seed[i], &n);
        trie_add(t->trie, text, n, i);
        t->least = fmin(t->least, t->scores[i]);
    }
    t->scores[0] = t->least - UNK_PENALTY;
}

static void start(Trainer *t) {
    double sum = 0;
    t->n = vocab_limit(t->seeds.texts) + 1;
    t->seed = mem_zero((size_t)t->n, sizeof *t->seed);
    t->scores = mem_zero((size_t)t->n, sizeof *t->scores);
    t->expected = mem_zero((size_t)t->n, sizeof *t->expected);
    for (int32_t i = 1; i < t->n; i++) sum += t->seeds.counts[i - 1];
    for (int32_t i = 1; i < t->n; i++) {
        t->seed[i] = i - 1;
        t->scores[i] = log(t->seeds.counts[i - 1]) - log(sum);
    }
    use_pieces(t);
}

/* Computes the digamma function as the `tokenizers` library does: by recurrence up to x >= 7, and then by the
 * asymptotic series. */
static double digamma(double x) {
    double sum = 0;
    for (; x < 7; x++) sum -= 1 / x;
    x -= 0.5;
    const double x1 = 1 / x, x2 = x1 * x1, x4 = x2 * x2;
    return sum + (log(x) + 1.0 / 24 * x2 - 7.0 / 960 * x4 + 31.0 / 8064 * x4 * x2 - 127.0 / 30720 * x4 * x4);
}

/* Runs one round of EM. Using digamma instead of log yields the Bayesian variant of EM, which favours fewer
 * pieces (Liang and Klein 2007). */
static void estimate(Trainer *t) {
    for (int32_t i = 0; i < t->n; i++) t->expected[i] = 0;
    for (int32_t w = 0; w < words_number(t->words); w++) {
        set_word(t, w);
        lattice_expect(t->lattice, (double)words_count(t->words, w), t->expected);
    }
    double sum = 0;
    int32_t kept = 1;
    for (int32_t i = 1; i < t->n; i++) {
        if (t->expected[i] < LEAST_COUNT) continue;
        sum += t->expected[i];
        t->seed[kept] = t->seed[i], t->scores[kept++] = t->expected[i];
    }
    t->n = kept;
    const double all = digamma(sum);
    for (int32_t i = 1; i < kept; i++) t->scores[i] = digamma(t->scores[i]) - all;
    use_pieces(t);
}

/* ---- pruning ---- */

typedef struct Loss {
    int32_t piece;
    double loss; /* the loss of log likelihood per word if the piece is dropped */
} Loss;

static int by_loss(const void *x, const void *y) {
    const Loss *a = x, *b = y;
    if (a->loss != b->loss) return a->loss < b->loss ? 1 : -1;
    return (a->piece > b->piece) - (a->piece < b->piece);
}

typedef enum Fate { DROP, KEEP, WEIGH } Fate;

/* Computes the loss of likelihood if a piece is dropped. In the best segmentations of words, the piece is then replaced
 * with the best segmentation of its text into other pieces. `freq` contains the number of occurrences of each piece. To
 * compute `after`, SentencePiece adds the number of pieces in the replacing segmentation. Version 0.23 of the
 * `tokenizers` library adds the number of all pieces instead, and thus overstates the loss of frequent pieces. This
 * code follows the library. */
static Fate weigh(Trainer *t, int32_t piece, const double *freq, double pieces, double words, double *loss) {
    size_t n;
    const char *text = vocab_text(t->seeds.texts, t->seed[piece], &n);
    lattice_set(t->lattice, piece_scores(t), text, n);
    const bool whole = lattice_best(t->lattice, false).n == 1;
    const Split other = lattice_best(t->lattice, true);
    const double count = freq[piece];
    if (!other.n) return KEEP;
    if (count == 0) return DROP;
    if (!whole) return KEEP;
    const double after = log(pieces + count * (double)(t->n - 1));
    double replaced = 0;
    for (size_t i = 0; i < other.n; i++) replaced += log(freq[other.pieces[i]] + count) - after;
    *loss = count / words * (log(count) - log(pieces) - replaced);
    return WEIGH;
}

/* Keeps the pieces that cannot be replaced, in order, followed by the pieces with the largest losses. */
static void prune(Trainer *t) {
    double *freq = t->expected, pieces = 0, words = 0;
    for (int32_t i = 0; i < t->n; i++) freq[i] = 0;
    for (int32_t w = 0; w < words_number(t->words); w++) {
        const double count = (double)words_count(t->words, w);
        set_word(t, w);
        const Split best = lattice_best(t->lattice, false);
        for (size_t i = 0; i < best.n; i++) freq[best.pieces[i]] += count;
        words += count, pieces += count * (double)best.n;
    }
    Loss *losses = mem_alloc((size_t)t->n * sizeof *losses);
    int32_t *seed = mem_zero((size_t)t->n, sizeof *seed), kept = 1;
    double *scores = mem_zero((size_t)t->n, sizeof *scores), loss = 0;
    size_t weighed = 0;
    for (int32_t i = 1; i < t->n; i++) {
        const Fate fate = weigh(t, i, freq, pieces, words, &loss);
        if (fate == WEIGH) losses[weighed++] = (Loss){i, loss};
        if (fate == KEEP) seed[kept] = t->seed[i], scores[kept++] = t->scores[i];
    }
    qsort(losses, weighed, sizeof *losses, by_loss);
    const int32_t shrunk = (int32_t)(t->n * SHRINK), limit = shrunk > t->limit ? shrunk : t->limit;
    for (size_t i = 0; i < weighed && kept < limit; i++) {
        seed[kept] = t->seed[losses[i].piece];
        scores[kept++] = t->scores[losses[i].piece];
    }
    free(t->seed), free(t->scores), free(losses);
    t->seed = seed, t->scores = scores, t->n = kept;
    use_pieces(t);
}

static void run(Trainer *t, const Training *c) {
    for (int32_t before = INT32_MAX;;) {
        if (c->progress) c->progress(c->ctx, t->n - 1);
        for (int i = 0; i < SUB_ITERATIONS; i++) estimate(t);
        /* the number of characters alone may exceed the limit */
        if (t->n <= t->limit || t->n >= before) return;
        before = t->n;
        prune(t);
    }
}

/* ---- the result ---- */

typedef struct Piece {
    int32_t seed;
    double score;
    int32_t place; /* index in the selection, which decides ties */
} Piece;

static int by_score(const void *x, const void *y) {
    const Piece *a = x, *b = y;
    if (a->score != b->score) return a->score < b->score ? 1 : -1;
    return (a->place > b->place) - (a->place < b->place);
}

/* Selects all characters, then pieces until the list is full, and sorts them by score. A dropped character gets the
 * minimum score plus a multiple of STEP that increases with each dropped character. */
static size_t choose(const Trainer *t, size_t wanted, Piece *out) {
    static const double STEP = 0.0001;
    const size_t chars = (size_t)t->seeds.chars;
    size_t n = chars, dropped = 0;
    for (size_t i = 0; i < chars; i++) out[i] = (Piece){(int32_t)i, NAN, (int32_t)i};
    for (int32_t i = 1; i < t->n; i++) {
        if (t->seed[i] < t->seeds.chars)
            out[t->seed[i]].score = t->scores[i];
        else if (n < wanted)
            out[n] = (Piece){t->seed[i], t->scores[i], (int32_t)n}, n++;
    }
    for (size_t i = 0; i < chars; i++)
        if (isnan(out[i].score)) out[i].score = t->least + STEP * (double)dropped++;
    qsort(out, n, sizeof *out, by_score);
    return n;
}

static Err add_entry(Vocab *vocab, json_t *list, const char *text, size_t n, double score) {
    json_array_append_new(list, json_pack("[o,f]", json_stringn(text, n), score));
    return vocab_add(vocab, text, n, vocab_limit(vocab));
}

static Err add_special(const Training *c, Vocab *vocab, json_t *list, int64_t *unk) {
    *unk = -1;
    for (size_t i = 0; i < c->num_special; i++)
        if (!strcmp(c->special[i], UNK)) *unk = (int64_t)i;
    if (*unk < 0) {
        *unk = 0;
        ERR_RETURN(add_entry(vocab, list, UNK, strlen(UNK), 0));
    }
    for (size_t i = 0; i < c->num_special; i++) {
        if (!*c->special[i]) return err_user("a special token is empty");
        ERR_RETURN(add_entry(vocab, list, c->special[i], strlen(c->special[i]), 0));
    }
    return ERR_OK;
}

static Err finish(Trainer *t, const Training *c, Vocab *vocab, json_t *list) {
    const size_t special = vocab_count(vocab), wanted = (size_t)c->vocab_size - special;
    Piece *pieces = mem_alloc((wanted + 1) * sizeof *pieces);
    Err e = ERR_OK;
    const size_t chosen = choose(t, wanted, pieces);
    for (size_t i = 0; i < chosen && !e.code; i++) {
        size_t n;
        const char *text = vocab_text(t->seeds.texts, pieces[i].seed, &n);
        if (vocab_id(vocab, text, n) < 0) /* otherwise, the text is a special token */
            e = add_entry(vocab, list, text, n, pieces[i].score);
    }
    free(pieces);
    return e;
}

static Err check_words(const Words *words) {
    for (int32_t w = 0; w < words_number(words); w++) {
        size_t n;
        words_text(words, w, &n);
        if (n > LONGEST_WORD)
            return err_user(
                "a text has %zu bytes without a blank, but at most %d are allowed: split the text", n,
                LONGEST_WORD);
    }
    return ERR_OK;
}

static Err train(Trainer *t, const Training *c, Vocab *vocab, json_t *list) {
    ERR_RETURN(check_words(t->words));
    ERR_RETURN(seeds_find(t->words, SEEDS, &t->seeds));
    const int64_t least = (int64_t)vocab_count(vocab) + t->seeds.chars;
    if (least > c->vocab_size)
        return err_user("--vocab-size %lld is below the number of special tokens, %zu, plus the number of "
                        "characters, %d: raise it",
                        (long long)c->vocab_size, vocab_count(vocab), t->seeds.chars);
    t->limit = (int32_t)(c->vocab_size * 11 / 10);
    start(t);
    run(t, c);
    return finish(t, c, vocab, list);
}

Err unigram_train(const Words *words, const Training *c, json_t **out, int64_t *tokens) {
    Trainer t = {.words = words, .lattice = lattice_new()};
    Vocab *vocab = vocab_new();
    json_t *list = json_array();
    int64_t unk;
    Err e = add_special(c, vocab, list, &unk);
    if (!e.code) e = train(&t, c, vocab, list);
    if (!e.code) {
        json_t *decoder = json_pack("{s:s,s:s,s:s,s:b}", "type", "Metaspace", "replacement", METASPACE,
                                    "prepend_scheme", "always", "split", 1);
        json_t *model = json_pack("{s:s,s:I,s:O,s:b}", "type", "Unigram", "unk_id", (json_int_t)unk, "vocab",
                                  list, "byte_fallback", 0);
        *tokens = (int64_t)vocab_count(vocab);
        *out = training_json(words, c, vocab, decoder, model);
    }
    json_decref(list);
    vocab_free(vocab);
    seeds_free(&t.seeds);
    trie_free(t.trie);
    lattice_free(t.lattice);
    free(t.seed), free(t.scores), free(t.expected);
    return e;
}
