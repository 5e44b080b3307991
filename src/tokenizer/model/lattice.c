#include "tokenizer/model/lattice.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/utf8.h"

enum { NONE = -1 };

typedef struct Edge {
    int32_t begin, end, piece;
    double score;
    double best; /* score of the best segmentation up to and including this edge */
} Edge;

struct Lattice {
    Edge *edges; /* the edges, sorted by beginning and then by end */
    size_t n, cap;
    int32_t length; /* bytes */
    /* [length + 1], by byte position in the word. NaN means that no edge ends (forward) or begins (backward)
     * at the position. */
    double *forward, *backward;
    int32_t *last; /* [length + 1], the last edge of the best segmentation up to each position */
    size_t places_cap;
    int32_t *pieces; /* the pieces that lattice_best returns */
};

Lattice *lattice_new(void) { return mem_zero(1, sizeof(Lattice)); }

void lattice_free(Lattice *l) {
    if (!l) return;
    free(l->edges), free(l->forward), free(l->backward), free(l->last), free(l->pieces), free(l);
}

static void add_edge(Lattice *l, size_t begin, size_t end, int32_t piece, double score) {
    if (l->n == l->cap) l->edges = mem_grow(l->edges, l->cap = l->cap * 2 + 256, sizeof *l->edges);
    l->edges[l->n++] = (Edge){(int32_t)begin, (int32_t)end, piece, score, 0};
}

void lattice_set(Lattice *l, PieceScores p, const char *word, size_t n) {
    l->n = 0;
    l->length = (int32_t)n;
    if (n + 1 > l->places_cap) {
        l->places_cap = 2 * n + 64;
        l->forward = mem_grow(l->forward, l->places_cap, sizeof *l->forward);
        l->backward = mem_grow(l->backward, l->places_cap, sizeof *l->backward);
        l->last = mem_grow(l->last, l->places_cap, sizeof *l->last);
        l->pieces = mem_grow(l->pieces, l->places_cap, sizeof *l->pieces);
    }
    for (size_t begin = 0, width; begin < n; begin += width) {
        uint32_t c;
        bool known = false; /* whether the character is a piece */
        width = utf8_next(word + begin, &c);
        int32_t node = TRIE_ROOT;
        for (size_t i = begin; i < n && (node = trie_child(p.trie, node, word[i])) != TRIE_NONE; i++) {
            const int32_t piece = trie_value(p.trie, node);
            if (piece == TRIE_NONE) continue;
            add_edge(l, begin, i + 1, piece, p.scores[piece]);
            known = known || i + 1 - begin == width;
        }
        if (!known) add_edge(l, begin, begin + width, 0, p.scores[0]);
    }
}

/* Returns log(exp(x) + exp(y)), or y if x is NaN. */
static double log_sum(double x, double y) {
    static const double FAR = 50; /* exp(-50) is below the precision of the sum */
    if (isnan(x)) return y;
    const double least = x > y ? y : x, most = x > y ? x : y;
    return most > least + FAR ? most : most + log(exp(least - most) + 1);
}

void lattice_expect(Lattice *l, double count, double *expected) {
    for (int32_t i = 0; i <= l->length; i++) l->forward[i] = l->backward[i] = NAN;
    l->forward[0] = l->backward[l->length] = 0;
    for (size_t i = 0; i < l->n; i++) {
        const Edge *e = &l->edges[i];
        l->forward[e->end] = log_sum(l->forward[e->end], e->score + l->forward[e->begin]);
    }
    for (size_t end = l->n; end;) {
        size_t first = end - 1; /* the first edge with the same beginning */
        while (first && l->edges[first - 1].begin == l->edges[end - 1].begin) first--;
        for (size_t i = first; i < end; i++) {
            const Edge *e = &l->edges[i];
            l->backward[e->begin] = log_sum(l->backward[e->begin], e->score + l->backward[e->end]);
        }
        end = first;
    }
    const double all = l->forward[l->length];
    for (size_t i = 0; i < l->n; i++) {
        const Edge *e = &l->edges[i];
        expected[e->piece] += count * exp(l->forward[e->begin] + e->score + l->backward[e->end] - all);
    }
}

Split lattice_best(Lattice *l, bool several) {
    for (int32_t i = 0; i <= l->length; i++) l->last[i] = NONE;
    for (size_t i = 0; i < l->n; i++) {
        Edge *e = &l->edges[i];
        if (several && !e->begin && e->end == l->length) continue;
        e->best = e->begin ? l->edges[l->last[e->begin]].best + e->score : e->score;
        int32_t *last = &l->last[e->end];
        if (*last == NONE || e->best > l->edges[*last].best) *last = (int32_t)i;
    }
    size_t first = l->places_cap, n = 0;
    for (int32_t at = l->length; at > 0 && l->last[at] != NONE; n++) {
        const Edge *e = &l->edges[l->last[at]];
        l->pieces[--first] = e->piece;
        at = e->begin;
    }
    return (Split){l->pieces + first, n};
}
