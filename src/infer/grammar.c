#include "infer/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/min_max.h"

enum { MASKS = 16, SLOTS = 4 * GRAMMAR_WIDEST };

/* A call that has not returned. More than one cell can describe the same call. */
typedef struct Cell {
    int32_t node, parent, depth; /* the return node; the enclosing call, or 0; the number of nested calls */
    uint32_t hash;               /* hash of these calls */
} Cell;

/* A node, and the calls that lead to it. */
typedef struct Place {
    int32_t node, cell;
} Place;

/* The places that a text has reached: a range in GrammarReader.place. */
typedef struct Range {
    int64_t first, n;
    bool wide; /* whether the text, or one of its prefixes, has reached more than GRAMMAR_WIDEST places */
} Range;

/* The tokens that may follow some places. */
typedef struct Mask {
    int32_t *key; /* [n]: the places with their calls */
    int64_t n;
    bool *allowed; /* [size] */
    bool wide;     /* whether a token leads to more than GRAMMAR_WIDEST places */
} Mask;

/* An entry in a hash table of the places in the last range. */
typedef struct Slot {
    int64_t range, place; /* the entry is in use if `range` is the last range's number */
} Slot;

struct GrammarReader {
    GrammarNode *node; /* [nodes] */
    const Vocabulary *vocabulary;
    Cell *cell; /* [cells]; cell 0 means that there is no call */
    Place *place;
    int64_t cells, places, settled; /* settled: number of tokens before the first range of places */
    Range begin;                    /* the first range of places */
    int64_t ranges;                 /* number of ranges so far */
    Slot slot[SLOTS];
    Range *at; /* the places after each byte of a token */
    Mask mask[MASKS];
    int64_t masks;
};

/* ---- places ---- */

static uint32_t mix(uint32_t hash, int32_t node) {
    hash = (hash ^ (uint32_t)node) * 0x9E3779B1u;
    return hash ^ hash >> 15;
}

static bool same_calls(const GrammarReader *m, int32_t a, int32_t b) {
    if (m->cell[a].hash != m->cell[b].hash || m->cell[a].depth != m->cell[b].depth) return false;
    for (; a != b; a = m->cell[a].parent, b = m->cell[b].parent)
        if (m->cell[a].node != m->cell[b].node) return false;
    return true;
}

static int32_t push_cell(GrammarReader *m, int32_t node, int32_t parent) {
    m->cell = mem_grow(m->cell, (size_t)m->cells + 1, sizeof *m->cell);
    m->cell[m->cells] = (Cell){node, parent, m->cell[parent].depth + 1, mix(m->cell[parent].hash, node)};
    return (int32_t)m->cells++;
}

static Range new_range(GrammarReader *m, bool wide) {
    m->ranges++;
    return (Range){m->places, 0, wide};
}

static void push_place(GrammarReader *m, Range *to, Place place) {
    uint32_t at = mix(m->cell[place.cell].hash, place.node) % SLOTS;
    for (; m->slot[at].range == m->ranges; at = (at + 1) % SLOTS) {
        const Place *other = &m->place[m->slot[at].place];
        if (other->node == place.node && same_calls(m, other->cell, place.cell)) return;
    }
    to->wide |= to->n == GRAMMAR_WIDEST;
    if (to->wide) return;
    m->slot[at] = (Slot){m->ranges, m->places};
    m->place = mem_grow(m->place, (size_t)m->places + 1, sizeof *m->place);
    m->place[m->places++] = place;
    to->n++;
}

/* Adds the places that a node represents to the last range. */
static void enter(GrammarReader *m, Range *to, int32_t node, int32_t cell) {
    const GrammarNode *x = &m->node[node];
    switch ((GrammarKind)x->kind) {
    case GRAMMAR_EITHER:
        enter(m, to, x->next, cell);
        enter(m, to, x->other, cell);
        break;
    case GRAMMAR_CALL:
        if (m->cell[cell].depth < GRAMMAR_DEEPEST) enter(m, to, x->next, push_cell(m, x->other, cell));
        break;
    case GRAMMAR_RETURN:
        if (cell) {
            enter(m, to, m->cell[cell].node, m->cell[cell].parent);
            break;
        }
        push_place(m, to, (Place){node, cell});
        break;
    case GRAMMAR_BYTE:
    case GRAMMAR_TOKEN:
        push_place(m, to, (Place){node, cell});
    }
}

static Range step_byte(GrammarReader *m, Range from, unsigned char byte) {
    Range to = new_range(m, from.wide);
    for (int64_t i = from.first; i < from.first + from.n; i++) {
        const Place p = m->place[i];
        const GrammarNode *x = &m->node[p.node];
        if (x->kind == GRAMMAR_BYTE && x->low <= byte && byte <= x->high) enter(m, &to, x->next, p.cell);
    }
    return to;
}

/* Returns the places after a token: those that its bytes reach, and those that a GRAMMAR_TOKEN node for this
 * token reaches. */
static Range step_token(GrammarReader *m, Range from, int32_t token) {
    const TokenText text = m->vocabulary->text[token];
    Range at = from;
    for (int32_t i = 0; i < text.n && at.n; i++) at = step_byte(m, at, (unsigned char)text.bytes[i]);
    Range to = text.n && from.n ? at : new_range(m, from.wide);
    for (int64_t i = from.first; i < from.first + from.n; i++) {
        const Place p = m->place[i];
        const GrammarNode *x = &m->node[p.node];
        if (x->kind == GRAMMAR_TOKEN && x->other == token) enter(m, &to, x->next, p.cell);
    }
    return to;
}

static bool is_complete(const GrammarReader *m, Range at) {
    for (int64_t i = at.first; i < at.first + at.n; i++)
        if (m->node[m->place[i].node].kind == GRAMMAR_RETURN) return true;
    return false;
}

/* ---- settled tokens ---- */

/* Moves a range to the start. Removes all other places, and all cells that no remaining place needs. */
static void settle(GrammarReader *m, Range at) {
    int32_t *moved = mem_zero((size_t)m->cells, sizeof *moved);
    memmove(m->place, m->place + at.first, (size_t)at.n * sizeof *m->place);
    m->places = at.n;
    m->begin = (Range){0, at.n, at.wide};
    for (int64_t i = 0; i < at.n; i++)
        for (int32_t c = m->place[i].cell; c && !moved[c]; c = m->cell[c].parent) moved[c] = 1;
    int64_t cells = 1;
    for (int64_t c = 1; c < m->cells; c++) { /* parents precede their children */
        if (!moved[c]) continue;
        m->cell[cells] = m->cell[c];
        m->cell[cells].parent = moved[m->cell[c].parent];
        moved[c] = (int32_t)cells++;
    }
    for (int64_t i = 0; i < at.n; i++) m->place[i].cell = moved[m->place[i].cell];
    m->cells = cells;
    free(moved);
}

/* ---- masks ---- */

/* Returns the places and their calls as an array of integers, which the caller frees. */
static int32_t *key_of(const GrammarReader *m, Range at, int64_t *n) {
    int64_t length = 0;
    for (int64_t i = at.first; i < at.first + at.n; i++) length += 2 + m->cell[m->place[i].cell].depth;
    int32_t *key = mem_alloc((size_t)length * sizeof *key + 1), *to = key;
    for (int64_t i = at.first; i < at.first + at.n; i++) {
        *to++ = m->place[i].node;
        for (int32_t c = m->place[i].cell; c; c = m->cell[c].parent) *to++ = m->cell[c].node;
        *to++ = -1;
    }
    *n = length;
    return key;
}

/* Computes the mask of the tokens that may follow the places `from`. Tokens that begin with the same bytes share the
 * work for these bytes. */
static void fill_mask(GrammarReader *m, Range from, Mask *mask) {
    bool *allowed = mask->allowed;
    const Vocabulary *v = m->vocabulary;
    const int64_t cells = m->cells, places = m->places;
    mask->wide = false;
    memset(allowed, 0, (size_t)v->size * sizeof *allowed);
    /* number of the row's leading bytes whose places are known; the last byte may lead to no place */
    int64_t known = 0;
    m->at = mem_grow(m->at, 1, sizeof *m->at);
    m->at[0] = from;
    for (const VocabularyRow *r = v->row; r < v->row + v->n; r++) {
        known = smaller(known, r->common);
        if (known && !m->at[known].n) continue; /* these bytes lead to no place, as in an earlier token */
        m->at = mem_grow(m->at, (size_t)r->text.n + 1, sizeof *m->at);
        m->places = m->at[known].first + m->at[known].n;
        if (!known) m->places = places, m->cells = cells;
        while (known < r->text.n && m->at[known].n) {
            m->at[known + 1] = step_byte(m, m->at[known], (unsigned char)r->text.bytes[known]);
            mask->wide |= m->at[++known].wide;
        }
        allowed[r->id] = known == r->text.n && m->at[known].n > 0;
    }
    m->cells = cells, m->places = places;
    for (int64_t i = from.first; i < from.first + from.n; i++) {
        const GrammarNode *x = &m->node[m->place[i].node];
        if (x->kind == GRAMMAR_TOKEN) allowed[x->other] = true;
    }
}

static const Mask *mask_of(GrammarReader *m, Range at) {
    int64_t n;
    int32_t *key = key_of(m, at, &n);
    for (Mask *k = m->mask; k < m->mask + smaller(m->masks, MASKS); k++)
        if (k->n == n && !memcmp(k->key, key, (size_t)n * sizeof *key)) {
            free(key);
            return k;
        }
    Mask *mask = &m->mask[m->masks++ % MASKS];
    free(mask->key);
    mask->key = key, mask->n = n;
    mask->allowed = mem_grow(mask->allowed, (size_t)m->vocabulary->size + 1, sizeof *mask->allowed);
    fill_mask(m, at, mask);
    return mask;
}

/* ---- readers ---- */

GrammarReader *grammar_new(const GrammarNode *nodes, int64_t n, const Vocabulary *v) {
    GrammarReader *m = mem_zero(1, sizeof *m);
    *m = (GrammarReader){.node = mem_copy(nodes, (size_t)n * sizeof *nodes),
                         .vocabulary = v,
                         .cell = mem_zero(1, sizeof *m->cell),
                         .cells = 1};
    m->begin = new_range(m, false);
    enter(m, &m->begin, 0, 0);
    return m;
}

void grammar_free(GrammarReader *m) {
    if (!m) return;
    for (int i = 0; i < MASKS; i++) free(m->mask[i].key), free(m->mask[i].allowed);
    free(m->node), free(m->cell), free(m->place), free(m->at), free(m);
}

const bool *grammar_next(GrammarReader *m, const int32_t *tokens, int64_t n, int64_t settled,
                         bool *complete) {
    while (m->settled < settled) settle(m, step_token(m, m->begin, tokens[m->settled++]));
    const int64_t cells = m->cells;
    Range at = m->begin;
    for (int64_t i = settled; i < n; i++) at = step_token(m, at, tokens[i]);
    const Mask *mask = at.wide ? NULL : mask_of(m, at);
    const bool narrow = mask && !mask->wide;
    *complete = narrow && is_complete(m, at);
    m->places = m->begin.n, m->cells = cells;
    return narrow ? mask->allowed : NULL;
}
